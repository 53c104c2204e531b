"""The GPU's form of a head of many rows, from its own source in emulated warps: the ring that goes on at the next tile, what is
stored, and the best columns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulated_module import gpu_module
from tests.fragment_emulator import fragments_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
RING = np.full(1, 1040 / 65536, np.float32)  # as in tests/test_gpu_wide.py
TILE = 192


@pytest.mark.parametrize(
    ("storage", "rows", "outputs", "vocab_size", "depth", "stripes"),
    [
        ("bfloat16", 9, 200, 195, 456, 1),  # a second tile of eight columns; eight chunks, more than are under way at once
        ("bfloat16", 64, 400, 400, 72, 2),  # one stripe of two tiles, one of one; fewer chunks than are under way
        ("float16", 66, 600, 590, 128, 1),  # four tiles; more rows than are multiplied at once
        ("bfloat16", 5, 192, 192, 64, 2),  # a stripe without a tile
    ],
)
def test_head(storage: str, rows: int, outputs: int, vocab_size: int, depth: int, stripes: int) -> None:
    warp = Warp(8)
    lang = {name: fragments_module(warp, name) for name in ("lang_wide", "lang_group", "lang_head")}
    ring_module = gpu_module("wide_group_gpu", warp, **lang)
    module = gpu_module("wide_head_gpu", warp, wide_group_gpu=ring_module, **lang)
    x, weight = stored(floats(1, rows + 1, depth), storage), stored(floats(3, outputs, depth), storage)
    logits = np.full((rows + 1, outputs), -7, np.float32)
    value, column = np.full((stripes, rows + 1), -7, np.float32), np.full((stripes, rows + 1), -7, np.int32)
    values, columns, live = np.zeros(128, np.float32), np.zeros(128, np.int32), np.array([rows], np.int32)
    head = module.STRIPES[NUMPY[storage], NUMPY[storage]]
    with np.errstate(invalid="ignore"):
        warp.run(head, logits, value, column, x, weight, np.int32(vocab_size), live, RING, values, columns)
    expected = widened(x)[:rows].astype(np.float64) @ widened(weight).T.astype(np.float64)
    np.testing.assert_allclose(logits[:rows], expected, rtol=1e-4, atol=1e-3)
    assert (logits[rows] == -7).all()
    for stripe in range(stripes):
        own = [at for at in range(vocab_size) if at // TILE % stripes == stripe]
        if own:
            best = logits[:rows, own].argmax(axis=1)
            np.testing.assert_array_equal(column[stripe, :rows], np.array(own)[best])
            np.testing.assert_array_equal(value[stripe, :rows], logits[np.arange(rows), np.array(own)[best]])
        else:
            assert (value[stripe, :rows] == -np.inf).all()
    assert (column[:, rows] == -7).all()
