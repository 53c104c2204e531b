"""Writes tiny random DFlash and DFlash2 drafters, named as the public ones, for a target of tests/tiny_checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tests.tiny_checkpoint import TinyShape

Tensors = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class DrafterShape:
    """What to write. Heads differ from the target's, and the head size from hidden size / heads."""

    version: Literal[1, 2] = 1
    num_layers: int = 2
    taps: tuple[int, ...] = (0, 2)
    block_size: int = 8
    mask_token_id: int = 5
    num_heads: int = 6
    num_kv_heads: int = 3
    head_dim: int = 8
    intermediate_size: int = 80
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None
    is_causal: bool | None = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_theta": 10000.0, "rope_scaling": None})
    attention_bias: bool = False
    conv_group_size: int = 16
    selector_rank: int = 12
    selector_top_k: int = 6
    extra: dict[str, Any] = field(default_factory=dict)  # more keys of config.json
    seed: int = 0


@dataclass(frozen=True)
class TinyDrafter:
    path: Path
    shape: DrafterShape
    config: dict[str, Any]
    tensors: Tensors = field(repr=False)


def write_tiny_drafter(folder: Path, target: TinyShape, shape: DrafterShape | None = None) -> TinyDrafter:
    """A folder of config.json and model.safetensors."""
    shape = shape or DrafterShape()
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = drafter_config(target, shape), drafter_tensors(target, shape)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return TinyDrafter(folder, shape, config, tensors)


def drafter_config(target: TinyShape, shape: DrafterShape) -> dict[str, Any]:
    """config.json as z-lab's files have it: some fields in dflash_config, some beside it."""
    inner: dict[str, Any] = {"mask_token_id": shape.mask_token_id, "target_layer_ids": list(shape.taps)}
    if shape.version == 2:
        inner |= {
            "block_size": shape.block_size,
            "conv_kernel_size": 2,
            "conv_group_size": shape.conv_group_size,
            "selector_rank": shape.selector_rank,
            "selector_top_k": shape.selector_top_k,
        }
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel" if shape.version == 1 else "DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": 1e-6,
        "attention_bias": shape.attention_bias,
        "max_position_embeddings": target.max_position_embeddings,
        "num_target_layers": target.num_layers,
        "dflash_config": inner,
        **shape.rope,
    }
    if shape.version == 1:
        config["block_size"] = shape.block_size
    optional = {"layer_types": shape.layer_types, "sliding_window": shape.sliding_window, "is_causal": shape.is_causal}
    config |= {name: list(value) if isinstance(value, tuple) else value for name, value in optional.items() if value is not None}
    return config | shape.extra


def drafter_tensors(target: TinyShape, shape: DrafterShape) -> Tensors:
    """Random weights. Every part matters to the result: norms are not 1, the convolutions are not the identity, and the selector's
    scores are as large as the differences between the best logits."""
    rng = np.random.default_rng(shape.seed)
    hidden, inter, head = target.hidden_size, shape.intermediate_size, shape.head_dim

    def matrix(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def norm(size: int) -> npt.NDArray[np.float32]:
        return (1.0 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    tensors = {"fc.weight": matrix(hidden, len(shape.taps) * hidden)}
    tensors |= {"hidden_norm.weight": norm(hidden), "norm.weight": norm(hidden)}
    for index in range(shape.num_layers):
        layer = f"layers.{index}."
        tensors[layer + "input_layernorm.weight"] = norm(hidden)
        tensors[layer + "post_attention_layernorm.weight"] = norm(hidden)
        heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
        for name, count in heads.items():
            tensors[layer + f"self_attn.{name}_proj.weight"] = matrix(count * head, hidden, 1.5)
        tensors[layer + "self_attn.o_proj.weight"] = matrix(hidden, shape.num_heads * head)
        if shape.attention_bias:
            for name, size in {**{name: count * head for name, count in heads.items()}, "o": hidden}.items():
                tensors[layer + f"self_attn.{name}_proj.bias"] = (0.5 * rng.standard_normal(size)).astype(np.float32)
        tensors[layer + "self_attn.q_norm.weight"] = 2 * norm(head)
        tensors[layer + "self_attn.k_norm.weight"] = norm(head)
        tensors[layer + "mlp.gate_proj.weight"] = matrix(inter, hidden, 1.5)
        tensors[layer + "mlp.up_proj.weight"] = matrix(inter, hidden, 1.5)
        tensors[layer + "mlp.down_proj.weight"] = matrix(hidden, inter)
        if shape.version == 2:
            for conv in ("attention_conv.", "mlp_conv."):
                base = 0.4 * rng.standard_normal((2, 2, hidden))
                base[:, 0] += 1.0
                tensors[layer + conv + "base_kernel"] = base.astype(np.float32)
                tensors[layer + conv + "kernel_projection.weight"] = matrix(4 * hidden // shape.conv_group_size, hidden, 0.3)
    if shape.version == 2:
        rank = shape.selector_rank
        tensors["candidate_selector.predecessor_codebook"] = rng.standard_normal((target.vocab_size, rank)).astype(np.float32)
        tensors["candidate_selector.successor_codebook"] = 0.5 * rng.standard_normal((target.vocab_size, rank)).astype(np.float32)
        tensors["candidate_selector.hidden_projection.weight"] = matrix(rank, hidden)
    return tensors


def read_tensors(path: Path) -> Tensors:
    """All tensors of a safetensors file of float32 or bfloat16 as float32, read byte by byte and not with our reader."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        values = np.frombuffer(raw[start + first : start + last], {"F32": "<f4", "BF16": "<u2"}[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"]).astype(np.float32)
    return tensors
