"""The GPU forms of a product that is held in registers, from their own source in an emulated block: lines, fragments, tails."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import held as kernel_held
from kernels import tile as kernel_tile
from tests.emulated_module import block_of_warps, gpu_module, plain
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
OPERAND = np.zeros(1, np.float32)  # what is in it is the emulator's own


def head(warps: int, outputs: int, rows: int, stripes: int, storage: str) -> tuple[Warp, np.ndarray, np.ndarray, np.ndarray]:
    """(the emulator, logits, the best column of each row, expected logits) of a head of one block."""
    warp, kind = Warp(warps), NUMPY[storage]
    gpu = gpu_module("held_gpu", warp, flow_gpu=gpu_module("flow_gpu", warp))
    names = ("HELD_ROWS", "HELD_TILE", "HELD_WARPS", "OPERAND")
    held = plain(
        **{name: getattr(kernel_held, name) for name in names},
        hold_tile=gpu.HOLD[kind],
        lay_out_rows=gpu.LAY_OUT[kind],
        held_products=gpu.PRODUCTS[kind, kind],
    )
    module = gpu_module("held_head", warp, held=held, project=block_of_warps(warp, warps), tile=kernel_tile)
    columns = kernel_held.HELD_COLUMNS
    x, weight = stored(floats(1, rows + 1, columns), storage), stored(floats(3, outputs, columns), storage)
    logits, value = np.full((rows + 1, outputs), -7, np.float32), np.full((stripes, rows + 1), -7, np.float32)
    column = np.full((stripes, rows + 1), -7, np.int32)
    partial = np.full(2 * kernel_held.HELD_WARPS * kernel_held.HELD_TILE, np.nan, np.float32)
    cells = kernel_held.HELD_WARPS * kernel_held.HELD_TILE
    best = np.full(cells, np.nan, np.float32), np.full(cells, -7, np.int32)
    last = x, weight, np.int32(outputs - 1), np.array([rows], np.int32)
    warp.run(lambda: module.held_rows(OPERAND, partial, *best, logits, value, column, *last))
    expected = widened(x)[:rows].astype(np.float64) @ widened(weight).T
    assert (column[:, rows] == -7).all()
    return warp, logits, np.take_along_axis(column, value.argmax(axis=0)[None], 0)[0, :rows], expected


@pytest.mark.parametrize(
    ("warps", "outputs", "rows", "stripes", "storage"),
    [
        (2, 100, 3, 1, "bfloat16"),  # the last tile is not whole, and of one warp alone
        (1, 40, 8, 1, "float16"),
        (3, 90, 9, 1, "bfloat16"),  # rows beyond eight: the first tile once more
        (2, 150, 2, 3, "bfloat16"),  # stripe after stripe
        (9, 200, 1, 1, "bfloat16"),  # a warp more than multiply
    ],
)
def test_head(warps: int, outputs: int, rows: int, stripes: int, storage: str) -> None:
    warp, logits, column, expected = head(warps, outputs, rows, stripes, storage)
    np.testing.assert_allclose(logits[:rows], expected, rtol=1e-3, atol=2e-2)
    np.testing.assert_array_equal(column, expected[:, : outputs - 1].argmax(axis=1))
    assert (logits[rows] == -7).all()
    assert warp.products == -(-outputs // 16) * 36 * -(-rows // 8), "a tile multiplied twice, or lines that are not there"


def test_no_weight_is_asked_for_twice() -> None:
    """What comes behind the last tile is not asked for: weights are read once for eight rows."""
    warp, *_ = head(2, 96, 8, 1, "bfloat16")
    assert sorted(warp.early) == list(range(0, 96 * 576, 8))
