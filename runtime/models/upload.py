"""Weights and KV cache on a device, as the recorders take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.arrays import DecoderShape, LayerArrays, ModelArrays
from graphs.executor import widened
from graphs.launch import Array
from runtime.checkpoint.random_tensor import ConstantMemory
from runtime.checkpoint.weights import STORAGE, ModelWeights
from runtime.models.rope import rope_table
from runtime.models.spec import ModelSpec


def decoder_shape(spec: ModelSpec) -> DecoderShape:
    """The part of a model's spec that recorders freeze into launches."""
    return DecoderShape(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        rms_norm_eps=spec.rms_norm_eps,
    )


def kv_cache_bytes(spec: ModelSpec, num_blocks: int, block_size: int, itemsize: int = 4) -> int:
    """Bytes of K and V of all layers."""
    return 2 * spec.num_layers * num_blocks * block_size * spec.kv_size * itemsize


def streamed_bytes(model: ModelArrays) -> int:
    """Bytes of weights that every step reads once. Of an embedding that is no head a step reads a few rows."""
    layers = (array for layer in model.layers for name, array in vars(layer).items() if not name.endswith("_cache"))
    return sum(array.nbytes for array in (*layers, model.final_norm, model.head) if array is not None)


def upload_model(
    device: Any, spec: ModelSpec, weights: ModelWeights, *, max_model_len: int, num_blocks: int, block_size: int
) -> ModelArrays:
    """Put the weights into constant device memory and allocate the KV cache, of the weights' type. Vectors become float32.

    The cache is one array "kv_cache" [layers, 2, num_blocks, block_size, kv_heads, head_dim]; each layer sees its K and its V.
    """

    constant = ConstantMemory(device)

    def vector(name: str, values: Any) -> Array:
        return constant(name, values if values.dtype == np.float32 else widened(values))

    def optional(name: str, values: Any) -> Array | None:
        return None if values is None else vector(name, values)

    pages = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
    kv_cache = device.array("kv_cache", (spec.num_layers, 2, *pages), STORAGE[weights.dtype])
    layers = tuple(
        LayerArrays(
            input_norm=vector(f"layers.{i}.input_norm", layer.input_norm),
            qkv=constant(f"layers.{i}.qkv", layer.qkv),
            qkv_bias=optional(f"layers.{i}.qkv_bias", layer.qkv_bias),
            q_norm=optional(f"layers.{i}.q_norm", layer.q_norm),
            k_norm=optional(f"layers.{i}.k_norm", layer.k_norm),
            out=constant(f"layers.{i}.out", layer.out),
            post_norm=vector(f"layers.{i}.post_norm", layer.post_norm),
            gate_up=constant(f"layers.{i}.gate_up", layer.gate_up),
            down=constant(f"layers.{i}.down", layer.down),
            k_cache=kv_cache[i : i + 1, 0:1].reshape(pages),
            v_cache=kv_cache[i : i + 1, 1:2].reshape(pages),
        )
        for i, layer in enumerate(weights.layers)
    )
    embed = constant("embed", weights.embed)
    return ModelArrays(
        shape=decoder_shape(spec),
        embed=embed,
        layers=layers,
        final_norm=vector("final_norm", weights.final_norm),
        head=embed if weights.head is weights.embed else constant("head", weights.head),
        rope_table=constant("rope_table", rope_table(spec.rope, spec.head_dim, max_model_len)),
    )
