"""GGUF checkpoints: every quantisation that the `gguf` package dequantises, of llama, qwen2 and qwen3 models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from runtime.checkpoint.gguf_header import GgufTensor, read_header
from runtime.checkpoint.storage import check_dtype, check_finite, check_tensors, row_chunks, store
from runtime.checkpoint.stored_weight import stored_weights
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.checkpoint.weights import (
    ModelWeights,
    Progress,
    WeightArray,
    WeightDtype,
    destinations,
    empty_weights,
    expected_shapes,
)
from runtime.errors import CheckpointError, DamagedFileError
from runtime.models.fields import Fields
from runtime.models.spec import ModelSpec, from_gguf
from runtime.shown_value import shown

ROPE_FREQUENCIES = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufCheckpoint:
    """An opened GGUF file: header read and checked, weights still on disk."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a file that is corrupt, of an unknown model, or whose tensors do not fit it."""
        self.path = path
        header = read_header(path)
        self._tensors = {_neutral_name(name): tensor for name, tensor in header.tensors.items()}
        frequencies = self._tensors.pop(ROPE_FREQUENCIES, None)
        factors: tuple[float, ...] = ()
        if frequencies is not None:
            factors = tuple(_dequantised(self._raw(frequencies), frequencies.kind).reshape(-1).tolist())
        self.spec: ModelSpec = from_gguf(header.metadata, "lm_head.weight" not in self._tensors, factors, str(path))
        self.tokenizer: TokenizerSource = _tokenizer(path, header.metadata, self.spec)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(path, expected_shapes(self.spec), found, _gguf_name)
        _check_kinds(path, self._tensors.values())

    def load_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        """Dequantise tensor by tensor straight into the fused arrays; scratch is a few MiB."""
        check_dtype(dtype)
        weights = empty_weights(self.spec, dtype)
        self._read_into(destinations(self.spec, weights), dtype, progress)
        return weights

    def stored_weights(self, progress: Progress | None = None, dtype: WeightDtype = "float32") -> ModelWeights:
        check_dtype(dtype)

        def read_into(views: Mapping[str, WeightArray], advance: Progress) -> None:
            self._read_into(views, dtype, advance)

        total = sum(tensor.nbytes for tensor in self._tensors.values())
        return stored_weights(self.spec, dtype, read_into, total, progress)

    def _read_into(self, views: Mapping[str, WeightArray], dtype: WeightDtype, progress: Progress | None) -> None:
        done, total = 0, sum(self._tensors[name].nbytes for name in views)
        for name, destination in views.items():
            tensor = self._tensors[name]
            raw, order = self._raw(tensor), self._row_order(name, destination.shape[0])
            flat, origin = destination.reshape(raw.shape[0], -1), f"{self.path}: tensor {tensor.name!r}"
            for rows in row_chunks(flat.shape):
                picked = raw[rows] if order is None else raw[order[rows]]
                store(flat[rows], _dequantised(picked, tensor.kind), dtype, origin)
                check_finite(flat[rows], dtype, origin)
                done += picked.nbytes
                if progress is not None:
                    progress(done, total)

    def _row_order(self, name: str, rows: int) -> npt.NDArray[np.intp] | None:
        """Which row of the file each row of ours is. llama files hold q and k for interleaved rotation, pairs
        (2j, 2j + 1); the kernels rotate halves, pairs (j, j + hd / 2). The other architectures are stored as halves.
        """
        if self.spec.architecture != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return None
        half = self.spec.head_dim // 2
        return np.arange(rows).reshape(-1, half, 2).swapaxes(1, 2).reshape(-1)

    def _raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, mapped: uint8 [rows, bytes of a row]; a vector is one row."""
        rows = math.prod(tensor.shape[:-1])
        try:
            return np.memmap(self.path, np.uint8, "r", tensor.offset, (rows, tensor.nbytes // rows))
        except (OSError, ValueError) as error:
            raise DamagedFileError(self.path, f"cannot read tensor {tensor.name!r}: {error}") from error


def _dequantised(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """float32 [rows, elements] of uint8 [rows, bytes]. Blocks never cross rows, so one long row gives the same values
    and spares the package its Python loop over groups of 16 rows.
    """
    with np.errstate(all="ignore"):  # what a damaged file makes of scales is told by check_finite
        values: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(raw).reshape(1, -1), kind)
    return values.reshape(raw.shape[0], -1)


def _check_kinds(path: Path, tensors: Iterable[GgufTensor]) -> None:
    """Refuse, before anything is loaded, what the package cannot dequantise (it says so only when asked)."""
    examples = {tensor.kind: tensor.name for tensor in tensors}
    unsupported = []
    for kind, name in examples.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            unsupported.append(f"{kind.name} (e.g. {name})")
    if unsupported:
        problem = f"the `gguf` package cannot dequantise {', '.join(unsupported)}"
        raise CheckpointError(f"{path}: {problem}; use a file of another quantisation, e.g. Q8_0")


def _neutral_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; names without one keep their own and are reported as unexpected."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _gguf_name(name: str) -> str:
    """Inverse of `_neutral_name`, for messages."""
    for theirs, ours in _TOP_NAMES.items():
        if name == ours:
            return theirs
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    for theirs, ours in _LAYER_NAMES.items():
        if match is not None and match[2] == ours:
            return f"blk.{match[1]}.{theirs}.{match[3]}"
    return name


def _tokenizer(path: Path, metadata: dict[str, Any], spec: ModelSpec) -> TokenizerSource:
    """The vocabulary in the file. Raises CheckpointError for SentencePiece and for lists that do not fit each other."""
    fields = Fields(metadata)
    model = fields.text("tokenizer.ggml.model")
    if model and model != "gpt2":
        fields.problems.append(f"tokenizer.ggml.model = {shown(model)}: only byte-level BPE ('gpt2') is supported")
    lists: dict[str, list[Any]] = {}
    for key, kind in (("tokens", str), ("merges", str), ("token_type", int)):
        values = metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            fields.problems.append(f"tokenizer.ggml.{key} is missing or no list of {kind.__name__}")
        else:
            lists[key] = values
    if not fields.problems and not len(lists["tokens"]) == len(lists["token_type"]) == spec.vocab_size:
        fields.problems.append(
            f"{len(lists['tokens'])} tokens with {len(lists['token_type'])} types for vocab_size = {spec.vocab_size}"
        )
    template = fields.text("tokenizer.chat_template", "")
    add_bos = fields.boolean("tokenizer.ggml.add_bos_token", False)
    if fields.problems:
        raise CheckpointError.listing(f"{path}: the tokenizer in the file cannot be used; use another checkpoint", fields.problems)
    return TokenizerSource(
        kind="gguf",
        vocabulary=lists["tokens"],
        merges=lists["merges"],
        token_types=lists["token_type"],
        pre=fields.text("tokenizer.ggml.pre", "default"),
        chat_template=template or None,
        bos_token_id=spec.bos_token_id,
        eos_token_ids=spec.eos_token_ids,
        add_bos=add_bos,
    )
