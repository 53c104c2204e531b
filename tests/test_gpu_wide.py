"""The GPU forms of the wide products, from their own source in emulated warps: lanes, fragments, banks, tails, the ring's turns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fragment_emulator import fragments_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
RING = np.ones(1, np.float32)  # its slots are the emulator's own


@pytest.mark.parametrize(
    ("storage", "tokens", "outputs", "depth", "height", "ranks"),
    [
        ("bfloat16", 64, 192, 264, 192, 1),  # all tokens; the ring of three turns, the last chunk is not whole
        ("bfloat16", 17, 120, 320, 128, 1),
        ("float16", 5, 200, 64, 192, 2),  # no column left for the second block
        ("bfloat16", 40, 128, 200, 128, 2),
    ],
)
def test_products(storage: str, tokens: int, outputs: int, depth: int, height: int, ranks: int) -> None:
    """Rows from 1 on of activations that have a row more in front, tiles at rows that leave their last rows without weights."""
    warp = Warp(8, ranks)
    module = gpu_module("wide_tile_gpu", warp, wide_fragments=fragments_module(warp))
    x, weight = stored(floats(1, 1 + tokens, depth), storage), stored(floats(3, outputs, depth), storage)
    kind, half = NUMPY[storage], height // 2
    first, second = np.int32(max(outputs - half - 8, 0)), np.int32(8)
    found = np.full((ranks, tokens, height), -7, np.float32)

    def tile() -> None:
        module.BEGIN[kind](RING, weight, first, second, np.int32(height))
        module.MULTIPLY[kind, kind](RING, x, np.int32(1), weight, first, second, np.int32(height))
        warp.syncthreads()
        warp.cluster_barrier()
        rank, thread = int(warp.cluster_rank()), int(warp.threadIdx.x)
        for item in range(thread, tokens * height // 8, 256):
            t, place = divmod(item, height // 8)
            where = (np.int32(0), np.int32(0), np.int32(t), np.int32(place * 8), np.int32(height))
            found[rank, t, place * 8 : place * 8 + 8] = module.SUMS[kind, kind](RING, x, weight, *where)

    warp.run(tile)
    rows = np.append(first + np.arange(half), second + np.arange(half))
    held = np.zeros((height, depth))
    held[rows < outputs] = widened(weight)[rows[rows < outputs]]
    expected = widened(x)[1:].astype(np.float64) @ held.T
    for of_rank in found:
        np.testing.assert_allclose(of_rank, expected, rtol=1e-4, atol=1e-3)
