"""The weights of a DFlash or DFlash2 drafter in host memory, fused the way the matrix products want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.checkpoint.safetensors_folder import check_readable, copy_tensors, open_tensors, read_json_object
from runtime.checkpoint.storage import check_dtype, check_tensors
from runtime.checkpoint.weights import STORAGE, Progress, WeightArray, WeightDtype
from runtime.errors import CheckpointError
from runtime.speculators.dflash_config import ARCHITECTURES, DraftSpec, read_draft_config

MakeWeight = Callable[..., WeightArray]
"""*shape -> a weight of that shape."""

OWN_TABLES = ("embed_tokens", "lm_head", "d2t", "t2d", "mask_embedding")
"""Tensors of community files that replace what a drafter shares with its target."""

SECOND_VERSION = ("attention_conv", "mlp_conv", "candidate_selector")
"""Parts of a drafter that DFlash2 has and DFlash has not."""


@dataclass(frozen=True)
class DraftConvWeights:
    """One dynamic convolution (DFlash2)."""

    base_kernel: WeightArray  # [2 sides, taps, H]
    projection: WeightArray  # [2 * taps * G, H]


@dataclass(frozen=True)
class DraftLayerWeights:
    """One draft layer, as its query pass uses it. Every array is C-contiguous."""

    input_norm: WeightArray  # [H]
    qkv: WeightArray  # [(nh + 2 nkv) hd, H] rows of q, then k, then v
    qkv_bias: WeightArray | None  # [(nh + 2 nkv) hd]
    q_norm: WeightArray  # [hd]
    k_norm: WeightArray  # [hd]
    out: WeightArray  # [H, nh hd]
    out_bias: WeightArray | None  # [H]
    post_norm: WeightArray  # [H]
    gate_up: WeightArray  # [2 I, H] rows of gate, then up
    down: WeightArray  # [H, I]
    attention_conv: DraftConvWeights | None
    mlp_conv: DraftConvWeights | None


@dataclass(frozen=True)
class SelectorWeights:
    """The candidate selector (DFlash2)."""

    predecessors: WeightArray  # [V, rank]
    successors: WeightArray  # [V, rank]
    projection: WeightArray  # [rank, H]


@dataclass(frozen=True)
class DraftWeights:
    """All weights of a drafter.

    The context's keys and values of every layer come out of one product: `context_kv` holds, layer after layer, the rows of k and
    then of v, copies of the same rows in `qkv`.
    """

    fc: WeightArray  # [H, taps * H of the target]
    hidden_norm: WeightArray  # [H]
    context_kv: WeightArray  # [L * 2 * nkv * hd, H]
    context_bias: WeightArray | None  # [L * 2 * nkv * hd]
    context_k_norms: WeightArray  # [L, hd]
    layers: tuple[DraftLayerWeights, ...]
    final_norm: WeightArray  # [H]
    selector: SelectorWeights | None
    dtype: WeightDtype


class DraftCheckpoint:
    """An opened drafter folder: configuration and headers read and checked, weights still on disk."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for files that are missing, truncated or corrupt, and tensors that do not fit them."""
        if not folder.is_dir():
            wanted = "must be a folder with config.json and model.safetensors; name one"
            raise CheckpointError(f"speculator.draft_source = {folder}: {wanted}")
        self.path = folder
        self.spec: DraftSpec = read_draft_config(read_json_object(folder / "config.json"), str(folder / "config.json"))
        if (folder / "mask_embedding.pt").exists():
            problem = "a mask embedding of the drafter's own is not supported; use another drafter"
            raise CheckpointError(f"{folder / 'mask_embedding.pt'}: {problem}")
        self._tensors = open_tensors(folder)
        own = sorted(name for name in self._tensors if any(part in OWN_TABLES for part in name.split(".")))
        if own:
            raise CheckpointError(f"{folder}: {', '.join(own)}: a drafter shares the target's tables; use one without its own")
        _check_version(folder, self.spec, self._tensors)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(folder, expected_draft_shapes(self.spec), found, str)
        check_readable(folder, self._tensors)

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> DraftWeights:
        """Read every weight into host memory. Raises as `Checkpoint.load_weights` does."""
        check_dtype(dtype)
        weights = _empty_weights(self.spec, dtype)
        copy_tensors(self._tensors, _destinations(self.spec, weights), dtype, progress)
        fill_context(self.spec, weights)
        return weights


def _check_version(folder: Path, spec: DraftSpec, names: Iterable[str]) -> None:
    """CheckpointError where config.json says DFlash and the tensors DFlash2, or the other way round."""
    second = sorted(name for name in names if any(part in SECOND_VERSION for part in name.split(".")))
    if (spec.version == 2) == bool(second):
        return
    said, held = sorted(ARCHITECTURES, key=lambda name: ARCHITECTURES[name] != spec.version)
    evidence = f"holds {len(second)} tensors that no {said} has, {second[0]} the first" if second else (
        f"holds no tensor of {', '.join(SECOND_VERSION)}, which every {said} has"
    )
    raise CheckpointError(
        f'{folder / "config.json"}: architectures = ["{said}"], but the file beside it {evidence}: set architectures to '
        f'["{held}"], or put the weights there that belong to this configuration'
    )


def expected_draft_shapes(spec: DraftSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint of this spec must hold, by its name in the file."""
    hidden, inter, head_dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, spec.feature_size), "hidden_norm.weight": (hidden,)}
    for index in range(spec.num_layers):
        layer = f"layers.{index}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[layer + f"{name}.weight"] = (hidden,)
        for name, rows in (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size)):
            shapes[layer + f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if spec.attention_bias:
                shapes[layer + f"self_attn.{name}_proj.bias"] = (rows,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, spec.q_size)
        if spec.attention_bias:
            shapes[layer + "self_attn.o_proj.bias"] = (hidden,)
        for name in ("q_norm", "k_norm"):
            shapes[layer + f"self_attn.{name}.weight"] = (head_dim,)
        for name in ("gate", "up"):
            shapes[layer + f"mlp.{name}_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inter)
        if spec.version == 2:
            for name in ("attention_conv", "mlp_conv"):
                shapes[layer + f"{name}.base_kernel"] = (2, spec.conv_kernel_size, hidden)
                shapes[layer + f"{name}.kernel_projection.weight"] = (_projection_rows(spec), hidden)
    shapes["norm.weight"] = (hidden,)
    if spec.version == 2:
        for name in ("predecessor_codebook", "successor_codebook"):  # named without `.weight` in the files
            shapes[f"candidate_selector.{name}"] = (spec.vocab_size, spec.selector_rank)
        shapes["candidate_selector.hidden_projection.weight"] = (spec.selector_rank, hidden)
    return shapes


def _projection_rows(spec: DraftSpec) -> int:
    return 2 * spec.conv_kernel_size * (spec.hidden_size // spec.conv_group_size)


def _empty_weights(spec: DraftSpec, dtype: WeightDtype) -> DraftWeights:
    """Uninitialised arrays for every weight of `spec`."""

    def array(*shape: int) -> WeightArray:
        return np.empty(shape, STORAGE[dtype])

    return draft_weights(spec, dtype, array, array)


def draft_weights(spec: DraftSpec, dtype: WeightDtype, array: MakeWeight, vector: MakeWeight) -> DraftWeights:
    """A weight for each place of `spec`: `array` makes matrices of a shape, `vector` what kernels read in float32."""
    hidden, inter, bias = spec.hidden_size, spec.intermediate_size, spec.attention_bias

    def conv() -> DraftConvWeights | None:
        if spec.version == 1:
            return None
        return DraftConvWeights(vector(2, spec.conv_kernel_size, hidden), array(_projection_rows(spec), hidden))

    layers = tuple(
        DraftLayerWeights(
            input_norm=vector(hidden),
            qkv=array(spec.qkv_size, hidden),
            qkv_bias=vector(spec.qkv_size) if bias else None,
            q_norm=vector(spec.head_dim),
            k_norm=vector(spec.head_dim),
            out=array(hidden, spec.q_size),
            out_bias=vector(hidden) if bias else None,
            post_norm=vector(hidden),
            gate_up=array(2 * inter, hidden),
            down=array(hidden, inter),
            attention_conv=conv(),
            mlp_conv=conv(),
        )
        for _ in range(spec.num_layers)
    )
    rank, selector = spec.selector_rank, None
    if spec.version == 2:
        selector = SelectorWeights(array(spec.vocab_size, rank), array(spec.vocab_size, rank), array(rank, hidden))
    return DraftWeights(
        fc=array(hidden, spec.feature_size),
        hidden_norm=vector(hidden),
        context_kv=array(spec.context_size, hidden),
        context_bias=vector(spec.context_size) if bias else None,
        context_k_norms=vector(spec.num_layers, spec.head_dim),
        layers=layers,
        final_norm=vector(hidden),
        selector=selector,
        dtype=dtype,
    )


def _destinations(spec: DraftSpec, weights: DraftWeights) -> dict[str, WeightArray]:
    """Where each tensor of `expected_draft_shapes` belongs: views into the fused arrays, same names, same shapes."""
    q_end, k_end, inter = spec.q_size, spec.q_size + spec.kv_size, spec.intermediate_size
    parts = {"q": slice(0, q_end), "k": slice(q_end, k_end), "v": slice(k_end, None)}
    views = {"fc.weight": weights.fc, "hidden_norm.weight": weights.hidden_norm, "norm.weight": weights.final_norm}
    for index, layer in enumerate(weights.layers):
        prefix = f"layers.{index}."
        views[prefix + "input_layernorm.weight"] = layer.input_norm
        views[prefix + "post_attention_layernorm.weight"] = layer.post_norm
        for name, rows in parts.items():
            views[prefix + f"self_attn.{name}_proj.weight"] = layer.qkv[rows]
            if layer.qkv_bias is not None:
                views[prefix + f"self_attn.{name}_proj.bias"] = layer.qkv_bias[rows]
        views[prefix + "self_attn.o_proj.weight"] = layer.out
        if layer.out_bias is not None:
            views[prefix + "self_attn.o_proj.bias"] = layer.out_bias
        views[prefix + "self_attn.q_norm.weight"] = layer.q_norm
        views[prefix + "self_attn.k_norm.weight"] = layer.k_norm
        views[prefix + "mlp.gate_proj.weight"] = layer.gate_up[:inter]
        views[prefix + "mlp.up_proj.weight"] = layer.gate_up[inter:]
        views[prefix + "mlp.down_proj.weight"] = layer.down
        for name, conv in (("attention_conv", layer.attention_conv), ("mlp_conv", layer.mlp_conv)):
            if conv is not None:
                views[prefix + f"{name}.base_kernel"] = conv.base_kernel
                views[prefix + f"{name}.kernel_projection.weight"] = conv.projection
    if weights.selector is not None:
        views["candidate_selector.predecessor_codebook"] = weights.selector.predecessors
        views["candidate_selector.successor_codebook"] = weights.selector.successors
        views["candidate_selector.hidden_projection.weight"] = weights.selector.projection
    return views


def fill_context(spec: DraftSpec, weights: DraftWeights) -> None:
    """Copy k and v of every layer into the matrix that serves all layers at once."""
    for index, layer in enumerate(weights.layers):
        rows = slice(index * 2 * spec.kv_size, (index + 1) * 2 * spec.kv_size)
        weights.context_kv[rows] = layer.qkv[spec.q_size :]
        if weights.context_bias is not None and layer.qkv_bias is not None:
            weights.context_bias[rows] = layer.qkv_bias[spec.q_size :]
        weights.context_k_norms[index] = layer.k_norm
