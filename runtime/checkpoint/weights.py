"""The weights of a dense decoder in host memory, fused the way the matrix products want them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from runtime.models.spec import ModelSpec

WeightArray = npt.NDArray[Any]
WeightDtype = Literal["float32", "float16", "bfloat16"]
Progress = Callable[[int, int], None]  # (bytes of the files read so far, bytes to read in all)

STORAGE: dict[WeightDtype, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),  # NumPy has no bfloat16: the upper 16 bits of the float32
}


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. H hidden, I intermediate, nh/nkv query/KV heads, hd head size. Every array is C-contiguous."""

    input_norm: WeightArray  # [H]
    qkv: WeightArray  # [(nh + 2 * nkv) * hd, H] rows of q, then k, then v; rotate-half (NeoX) order inside a head
    qkv_bias: WeightArray | None  # [(nh + 2 * nkv) * hd]
    q_norm: WeightArray | None  # [hd]
    k_norm: WeightArray | None  # [hd]
    out: WeightArray  # [H, nh * hd]
    post_norm: WeightArray  # [H]
    gate_up: WeightArray  # [2 * I, H] rows of gate, then up
    down: WeightArray  # [H, I]


@dataclass(frozen=True)
class ModelWeights:
    """All weights of a model, of one dtype. `head is embed` where the checkpoint ties them."""

    embed: WeightArray  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: WeightArray  # [H]
    head: WeightArray  # [V, H]
    dtype: WeightDtype  # "bfloat16" is stored as uint16 bits

    @property
    def nbytes(self) -> int:
        """Of all weights; a head that is the embedding counts once."""
        tensors = [self.embed, self.final_norm, *([] if self.head is self.embed else [self.head])]
        for layer in self.layers:
            tensors += [tensor for tensor in vars(layer).values() if tensor is not None]
        return sum(tensor.nbytes for tensor in tensors)


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint of this spec must hold, by its Hugging Face name (our neutral name)."""
    hidden, inter, head_dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for index in range(spec.num_layers):
        layer = f"model.layers.{index}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size)):
            shapes[layer + f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if spec.attention_bias:
                shapes[layer + f"self_attn.{name}_proj.bias"] = (rows,)
        if spec.qk_norm:
            shapes[layer + "self_attn.q_norm.weight"] = (head_dim,)
            shapes[layer + "self_attn.k_norm.weight"] = (head_dim,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, spec.q_size)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        shapes[layer + "mlp.gate_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inter)
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes


def empty_weights(spec: ModelSpec, dtype: WeightDtype) -> ModelWeights:
    """Uninitialised arrays for every weight of `spec`."""
    hidden, inter, storage = spec.hidden_size, spec.intermediate_size, STORAGE[dtype]

    def array(*shape: int) -> WeightArray:
        return np.empty(shape, storage)

    layers = tuple(
        LayerWeights(
            input_norm=array(hidden),
            qkv=array(spec.qkv_size, hidden),
            qkv_bias=array(spec.qkv_size) if spec.attention_bias else None,
            q_norm=array(spec.head_dim) if spec.qk_norm else None,
            k_norm=array(spec.head_dim) if spec.qk_norm else None,
            out=array(hidden, spec.q_size),
            post_norm=array(hidden),
            gate_up=array(2 * inter, hidden),
            down=array(hidden, inter),
        )
        for _ in range(spec.num_layers)
    )
    embed = array(spec.vocab_size, hidden)
    head = embed if spec.tied_embeddings else array(spec.vocab_size, hidden)
    return ModelWeights(embed, layers, array(hidden), head, dtype)


def destinations(spec: ModelSpec, weights: ModelWeights) -> dict[str, WeightArray]:
    """Where each tensor of `expected_shapes` belongs: views into the fused arrays, same names, same shapes."""
    q_end, k_end, inter = spec.q_size, spec.q_size + spec.kv_size, spec.intermediate_size
    parts = {"q": slice(0, q_end), "k": slice(q_end, k_end), "v": slice(k_end, None)}
    views: dict[str, WeightArray] = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.final_norm}
    if not spec.tied_embeddings:
        views["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        views[prefix + "input_layernorm.weight"] = layer.input_norm
        for name, rows in parts.items():
            views[prefix + f"self_attn.{name}_proj.weight"] = layer.qkv[rows]
            if layer.qkv_bias is not None:
                views[prefix + f"self_attn.{name}_proj.bias"] = layer.qkv_bias[rows]
        if layer.q_norm is not None and layer.k_norm is not None:
            views[prefix + "self_attn.q_norm.weight"] = layer.q_norm
            views[prefix + "self_attn.k_norm.weight"] = layer.k_norm
        views[prefix + "self_attn.o_proj.weight"] = layer.out
        views[prefix + "post_attention_layernorm.weight"] = layer.post_norm
        views[prefix + "mlp.gate_proj.weight"] = layer.gate_up[:inter]
        views[prefix + "mlp.up_proj.weight"] = layer.gate_up[inter:]
        views[prefix + "mlp.down_proj.weight"] = layer.down
    return views
