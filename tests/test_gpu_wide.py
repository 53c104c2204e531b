"""The GPU forms of the wide products, from their own source in emulated warps: lanes, fragments, banks, tails, the ring's turns."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.fragment_emulator import fragments_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
RING = np.ones(1, np.float32)  # its slots are the emulator's own


def emulated(warp: Warp) -> ModuleType:
    return gpu_module("wide_tile_gpu", warp, lang_wide=fragments_module(warp))


@pytest.mark.parametrize(
    ("storage", "tokens", "outputs", "depth", "height", "parts"),
    [
        ("bfloat16", 64, 192, 264, 192, 1),  # all tokens; the ring of three turns, the last chunk is not whole
        ("bfloat16", 17, 120, 320, 128, 1),
        ("float16", 5, 200, 64, 192, 2),  # no column left for the second part
        ("bfloat16", 40, 128, 200, 128, 4),
    ],
)
def test_products(storage: str, tokens: int, outputs: int, depth: int, height: int, parts: int) -> None:
    """Rows from 1 on of activations that have a row more in front, tiles at rows that leave their last rows without weights; parts
    one after the other, each of which finds the sums of those before and, in the place of those behind, NaN."""
    x, weight = stored(floats(1, 1 + tokens, depth), storage), stored(floats(3, outputs, depth), storage)
    kind, half, tile = NUMPY[storage], height // 2, 1
    first, second = np.int32(max(outputs - half - 8, 0)), np.int32(8)
    partial = np.full(((tile + 1) * parts, 64 * 192), np.nan, np.float32)
    found = np.full((tokens, height), -7, np.float32)
    for part in range(parts):
        warp = Warp(8)
        module = emulated(warp)
        shared = (np.int32(part), np.int32(parts))

        def block(warp: Warp = warp, module: ModuleType = module, shared: tuple[np.int32, ...] = shared, part: int = part) -> None:
            module.BEGIN[kind](RING, weight, first, second, np.int32(height), *shared)
            module.MULTIPLY[kind, kind](RING, x, np.int32(1), weight, first, second, np.int32(height), *shared)
            warp.syncthreads()
            for item in range(int(warp.threadIdx.x), tokens * height, 256):
                where = np.int32(item // height), np.int32(item % height), np.int32(height)
                partial[tile * parts + part, item] = module.OWN[kind, kind](RING, x, weight, *where)
            warp.syncthreads()
            if part < parts - 1:
                return
            partial[tile * parts + part] = np.nan  # its own sums are those in the ring
            for item in range(int(warp.threadIdx.x), tokens * height // 8, 256):
                t, place = divmod(item, height // 8)
                where = (np.int32(0), np.int32(0), np.int32(t), np.int32(place * 8), np.int32(height), np.int32(tile))
                sums = module.SUMS[kind, kind](RING, partial, x, weight, *where, *shared)
                found[t, place * 8 : place * 8 + 8] = sums

        warp.run(block)
    rows = np.append(first + np.arange(half), second + np.arange(half))
    held = np.zeros((height, depth))
    held[rows < outputs] = widened(weight)[rows[rows < outputs]]
    np.testing.assert_allclose(found, widened(x)[1:].astype(np.float64) @ held.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("columns", "row", "last"), [(512, 0, 3), (520, 2, 4), (13, 0, 0)])
def test_squares_of_four_rows(columns: int, row: int, last: int) -> None:
    """Rows behind the last are it."""
    warp, squares = Warp(), floats(5, 6, columns) ** 2
    module, found = emulated(warp), np.zeros((32, 4), np.float32)

    def lanes() -> None:
        found[int(warp.lane())] = module.four_totals(squares, np.int32(row), np.int32(last))

    warp.run(lanes)
    expected = [squares[min(row + i, last)].sum() for i in range(4)]
    np.testing.assert_allclose(found.sum(axis=0), expected, rtol=1e-5)
