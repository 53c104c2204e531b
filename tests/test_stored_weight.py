"""Weights that are read when they are wanted: the same bits, one of them in host memory at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.checkpoint import storage
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.random_tensor import ConstantMemory
from runtime.checkpoint.stored_weight import StoredWeight
from runtime.checkpoint.weights import ModelWeights, WeightDtype, destinations, parts
from runtime.errors import CheckpointError
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_gguf import write_tiny_gguf


def every(weights: ModelWeights) -> dict[str, Any]:
    named = {"embed": weights.embed, "final_norm": weights.final_norm, "head": weights.head}
    for index, layer in enumerate(weights.layers):
        named |= {f"{index}.{name}": value for name, value in vars(layer).items() if value is not None}
    return named


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("format_", ["safetensors", "gguf"])
def test_the_same_bits_as_all_at_once(tmp_path: Path, architecture: Any, dtype: WeightDtype, format_: str) -> None:
    model = write_tiny_checkpoint(tmp_path / "hf", TinyShape(architecture=architecture, shards=2, tied=architecture == "qwen2"))
    path = model.path
    if format_ == "gguf":
        path = tmp_path / "model.gguf"
        write_tiny_gguf(path, model)
    checkpoint = open_checkpoint(path)
    whole, stored = checkpoint.load_weights(dtype=dtype), checkpoint.stored_weights(dtype=dtype)
    assert stored.nbytes == whole.nbytes
    assert (stored.head is stored.embed) == (whole.head is whole.embed)
    for (name, ours), theirs in zip(every(stored).items(), every(whole).values(), strict=True):
        assert isinstance(ours, StoredWeight) == (theirs.ndim > 1), name
        assert (ours.shape, ours.dtype, ours.nbytes) == (theirs.shape, theirs.dtype, theirs.nbytes)
        np.testing.assert_array_equal(ours.read() if isinstance(ours, StoredWeight) else ours, theirs, err_msg=name)


def test_chunks_are_of_the_size_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that read tiny tensors in several chunks depend on it."""
    monkeypatch.setattr(storage, "CHUNK_ELEMENTS", 20)
    assert list(storage.row_chunks((7, 3, 2))) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(storage.row_chunks((2, 100))) == [slice(0, 1), slice(1, 2)]
    assert list(storage.row_chunks((7, 3, 2), elements=100)) == [slice(0, 7)]


def test_progress_counts_every_byte_of_the_files_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, TinyShape(shards=2)).path)
    seen: list[tuple[int, int]] = []
    stored = checkpoint.stored_weights(progress=lambda done, total: seen.append((done, total)))
    before = seen[-1][0]
    for weight in every(stored).values():
        if isinstance(weight, StoredWeight):
            weight.read()
    assert 0 < before < seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


def test_host_memory_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    """A device that copies what it is given, as a GPU does."""

    class Taking:
        def constant(self, name: str, values: Any) -> str:
            assert isinstance(values, np.ndarray)
            return name

    shape = TinyShape(num_layers=12, hidden_size=256, intermediate_size=512, shards=3)
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, shape).path)
    tracemalloc.start()
    try:
        stored = checkpoint.stored_weights()
        put, largest = ConstantMemory(Taking()), 0  # type: ignore[arg-type]
        for name, weight in every(stored).items():
            largest = max(largest, weight.nbytes)
            put(name, weight)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * largest < stored.nbytes / 5


def test_a_file_that_breaks_is_told_when_it_is_read(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path, TinyShape())
    stored = open_checkpoint(model.path).stored_weights()
    (model.path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot read tensor"):
        stored.layers[1].qkv.read()  # type: ignore[attr-defined]


def test_parts_cover_every_destination(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, TinyShape(architecture="qwen2")).path)
    listed = [tensor for tensors in parts(checkpoint.spec).values() for tensor in tensors]
    assert sorted(listed) == sorted(destinations(checkpoint.spec, checkpoint.load_weights()))
    assert len(set(listed)) == len(listed)
