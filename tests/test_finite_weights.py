"""NaN and infinity in the weights of a target or a drafter are refused while they are read, by file and tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime.checkpoint import storage
from runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint
from runtime.checkpoint.gguf_header import read_header
from runtime.checkpoint.storage import check_finite, float32_to_bfloat16, store
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.errors import CheckpointError
from runtime.speculators.dflash_weights import DraftCheckpoint
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, read_tensors, write_tiny_drafter
from tests.tiny_gguf import write_tiny_gguf

DTYPES: tuple[WeightDtype, ...] = ("float32", "float16", "bfloat16")
BAD = [np.nan, -np.nan, np.inf, -np.inf]


def as_stored(values: Any, dtype: WeightDtype) -> Any:
    values = np.asarray(values, np.float32)
    return float32_to_bfloat16(values) if dtype == "bfloat16" else values.astype(STORAGE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_finite_pattern_passes_and_no_other(dtype: WeightDtype) -> None:
    if dtype == "float32":
        largest = np.finfo(np.float32)
        check_finite(np.array([largest.max, largest.min, largest.tiny, largest.smallest_subnormal, -0.0], np.float32), dtype, "w")
        others = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    else:
        bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
        values = bits.view(np.float16) if dtype == "float16" else storage.bfloat16_to_float32(bits)
        finite, kept = np.isfinite(values), bits.view(STORAGE[dtype])
        check_finite(kept[finite], dtype, "w")
        others = kept[~finite]
    for place in range(0, len(others), 7):
        with pytest.raises(CheckpointError, match=r"w holds (nan|-?inf): weights must be finite numbers; .* fetch it again"):
            check_finite(others[place : place + 1], dtype, "w")
    check_finite(others[:0], dtype, "w")


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.filterwarnings("error")
def test_a_hugging_face_target(tmp_path: Path, stored: WeightDtype, wanted: WeightDtype, value: float, monkeypatch: Any) -> None:
    """Whether a tensor is copied or converted, all at once or weight by weight, in the last of several chunks."""
    monkeypatch.setattr(storage, "CHUNK_ELEMENTS", 1000)
    tiny = write_tiny_checkpoint(tmp_path, TinyShape())
    name = "model.layers.1.mlp.down_proj.weight"
    tensors = dict(tiny.tensors)
    tensors[name] = tensors[name].copy()
    tensors[name][-1, -1] = value
    if stored == "bfloat16":
        write_bfloat16(tmp_path / "model.safetensors", tensors)
    else:
        save_file({key: as_stored(array, stored) for key, array in tensors.items()}, tmp_path / "model.safetensors")
    refused = rf"model\.safetensors: tensor '{name}' holds (nan|-?inf): weights must be finite"
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=refused):
        checkpoint.load_weights(dtype=wanted)
    with pytest.raises(CheckpointError, match=refused):
        read_all(checkpoint, wanted)


def write_bfloat16(path: Path, tensors: dict[str, Any]) -> None:
    header, data = {}, b""
    for name, values in tensors.items():
        raw = float32_to_bfloat16(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_all(checkpoint: Checkpoint, dtype: WeightDtype) -> None:
    weights = checkpoint.stored_weights(dtype=dtype)
    for layer in weights.layers:
        for weight in vars(layer).values():
            if hasattr(weight, "read"):
                weight.read()


@pytest.mark.parametrize("tensor", ["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"])
def test_any_tensor_and_its_shard(tmp_path: Path, tensor: str) -> None:
    write_tiny_checkpoint(tmp_path, TinyShape(shards=3))
    path = next(path for path in sorted(tmp_path.glob("*.safetensors")) if tensor in read_tensors(path))
    tensors = read_tensors(path)
    tensors[tensor].reshape(-1)[0] = np.nan
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"{path.name}: tensor '{tensor}' holds nan"):
        open_checkpoint(tmp_path).load_weights()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_a_gguf_target(tmp_path: Path, kind: str) -> None:
    """The scale of a quantised block is a float as well."""
    tiny = write_tiny_checkpoint(tmp_path / "model")
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, tiny, kind)
    at, raw = read_header(path).tensors["blk.1.ffn_down.weight"].offset, bytearray(path.read_bytes())
    nan = {"F32": b"\x00\x00\xc0\x7f", "BF16": b"\xc0\x7f"}.get(kind, b"\x00\x7e")
    raw[at : at + len(nan)] = nan
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor 'blk\.1\.ffn_down\.weight' holds nan: weights must be finite"):
        open_checkpoint(path).load_weights(dtype="bfloat16")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tensor_of_a_drafter(tmp_path: Path, version: Any, dtype: WeightDtype) -> None:
    drafter = write_tiny_drafter(tmp_path, TinyShape(num_layers=4), DrafterShape(version=version, num_layers=1))
    for name, values in drafter.tensors.items():
        broken = values.copy()
        broken.reshape(-1)[-1] = np.inf
        save_file({**drafter.tensors, name: broken}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor '{name}' holds inf: weights must be finite"):
            DraftCheckpoint(tmp_path).load_weights(dtype=dtype)
    save_file(drafter.tensors, tmp_path / "model.safetensors")
    DraftCheckpoint(tmp_path).load_weights(dtype=dtype)


def test_a_float_that_no_bfloat16_holds(tmp_path: Path) -> None:
    """The largest float32 rounds to infinity there: what is held is looked at, not what the file says."""
    held = np.empty(1, np.uint16)
    store(held, np.array([np.finfo(np.float32).max], np.float32), "bfloat16", "w")
    with pytest.raises(CheckpointError, match="w holds inf"):
        check_finite(held, "bfloat16", "w")
