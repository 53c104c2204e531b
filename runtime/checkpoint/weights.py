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


def build_weights(spec: ModelSpec, dtype: WeightDtype, make: Callable[[str, tuple[int, ...]], Any]) -> ModelWeights:
    """What `make` yields for each weight, by name and shape: embed, final_norm, head, layers.0.qkv and so on."""
    hidden, inter = spec.hidden_size, spec.intermediate_size

    def layer(index: int) -> LayerWeights:
        def array(name: str, *shape: int) -> Any:
            return make(f"layers.{index}.{name}", shape)

        return LayerWeights(
            input_norm=array("input_norm", hidden),
            qkv=array("qkv", spec.qkv_size, hidden),
            qkv_bias=array("qkv_bias", spec.qkv_size) if spec.attention_bias else None,
            q_norm=array("q_norm", spec.head_dim) if spec.qk_norm else None,
            k_norm=array("k_norm", spec.head_dim) if spec.qk_norm else None,
            out=array("out", hidden, spec.q_size),
            post_norm=array("post_norm", hidden),
            gate_up=array("gate_up", 2 * inter, hidden),
            down=array("down", hidden, inter),
        )

    layers = tuple(layer(index) for index in range(spec.num_layers))
    embed = make("embed", (spec.vocab_size, hidden))
    head = embed if spec.tied_embeddings else make("head", (spec.vocab_size, hidden))
    return ModelWeights(embed, layers, make("final_norm", (hidden,)), head, dtype)


def empty_weights(spec: ModelSpec, dtype: WeightDtype) -> ModelWeights:
    """Uninitialised arrays for every weight of `spec`."""
    return build_weights(spec, dtype, lambda name, shape: np.empty(shape, STORAGE[dtype]))


def parts(spec: ModelSpec) -> dict[str, dict[str, slice]]:
    """Which tensors of `expected_shapes` lie in which rows of a weight, by the names of `build_weights`."""
    q_end, k_end, inter, whole = spec.q_size, spec.q_size + spec.kv_size, spec.intermediate_size, slice(None)
    qkv = {"q": slice(0, q_end), "k": slice(q_end, k_end), "v": slice(k_end, None)}
    table: dict[str, dict[str, slice]] = {
        "embed": {"model.embed_tokens.weight": whole},
        "final_norm": {"model.norm.weight": whole},
    }
    if not spec.tied_embeddings:
        table["head"] = {"lm_head.weight": whole}
    for index in range(spec.num_layers):
        names = {
            "input_norm": {"input_layernorm.weight": whole},
            "qkv": {f"self_attn.{name}_proj.weight": rows for name, rows in qkv.items()},
            "qkv_bias": {f"self_attn.{name}_proj.bias": rows for name, rows in qkv.items()} if spec.attention_bias else {},
            "q_norm": {"self_attn.q_norm.weight": whole} if spec.qk_norm else {},
            "k_norm": {"self_attn.k_norm.weight": whole} if spec.qk_norm else {},
            "out": {"self_attn.o_proj.weight": whole},
            "post_norm": {"post_attention_layernorm.weight": whole},
            "gate_up": {"mlp.gate_proj.weight": slice(0, inter), "mlp.up_proj.weight": slice(inter, None)},
            "down": {"mlp.down_proj.weight": whole},
        }
        for name, tensors in names.items():
            if tensors:
                table[f"layers.{index}.{name}"] = {f"model.layers.{index}.{tensor}": rows for tensor, rows in tensors.items()}
    return table


def destinations(spec: ModelSpec, weights: ModelWeights) -> dict[str, WeightArray]:
    """Where each tensor of `expected_shapes` belongs: views into the fused arrays, same names, same shapes."""
    arrays = {"embed": weights.embed, "final_norm": weights.final_norm, "head": weights.head}
    for index, layer in enumerate(weights.layers):
        arrays |= {f"layers.{index}.{name}": array for name, array in vars(layer).items()}
    return {tensor: arrays[name][rows] for name, tensors in parts(spec).items() for tensor, rows in tensors.items()}
