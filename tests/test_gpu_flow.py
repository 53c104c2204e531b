"""The GPU forms of the products whose weights flow, from their own source in an emulated warp: stages, fragments, tails, clamps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

STORAGE = pytest.mark.parametrize("storage", ["bfloat16", "float16"])
RING = np.zeros(1, np.float32)  # its slots are the emulator's own
NUMPY = {"bfloat16": "uint16", "float16": "float16"}


@STORAGE
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "line", "lines", "second", "limit"),
    [
        (1, 16, 64, 0, 1, 8, 16),
        (8, 40, 576, 3, 6, 8, 40),  # the last tile has no second slab
        (7, 37, 512, 0, 8, 8, 37),
        (3, 80, 320, 0, 3, 40, 40),  # gate and up: the second slab lies half of all further on
        (2, 88, 128, 2, 0, 8, 88),  # no column left for this warp
        (5, 24, 384, 2, 4, 8, 24),
    ],
)
def test_tiles(storage: str, rows: int, outputs: int, depth: int, line: int, lines: int, second: int, limit: int) -> None:
    """All tiles of a warp that is the third of its block, twice over: the ring goes on from where it was."""
    warp = Warp()
    module = gpu_module("flow_gpu", warp)
    x, weight = stored(floats(1, 2 + rows, depth), storage), stored(floats(3, outputs, depth), storage)
    kind, step, place = NUMPY[storage], np.int32(16 if second == 8 else 8), np.int32(2)
    firsts = range(0, limit, int(step))
    partial = np.full((2, len(firsts), 128), -7, np.float32)
    own = np.int32(line), np.int32(lines), place

    def twice() -> None:
        module.open_ring(RING, place)
        turn = np.uint32(0)
        for time, token in enumerate((np.int32(0), np.int32(2))):
            module.BEGIN[kind](RING, weight, np.int32(0), np.int32(second), step, np.int32(limit), *own, turn)
            held = module.OPERAND[kind](x, token, np.int32(line))
            for tile, first in enumerate(firsts):
                sums, tiles = partial[time, tile], (np.int32(first), np.int32(second), step, np.int32(limit))
                turn = module.TILE_OF[kind, kind](RING, sums, np.int32(0), held, x, token, weight, *tiles, *own, turn)

    warp.run(twice)
    columns = slice(line * 64, (line + lines) * 64)
    for time, token in enumerate((0, 2)):
        for tile, first in enumerate(firsts):
            for slab in range(2):
                of = weight[first + slab * second : first + slab * second + 8]
                expected = widened(x)[token : token + 8, columns].astype(np.float64) @ widened(of)[:, columns].T
                found = partial[time, tile].reshape(2, 8, 8)[slab, : expected.shape[0], : expected.shape[1]]
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
