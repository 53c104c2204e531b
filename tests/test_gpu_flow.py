"""The GPU forms of the products whose weights flow, from their own source in an emulated warp: stages, fragments, tails, clamps."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import flow as kernel_flow
from kernels import tile as kernel_tile
from kernels.lang import source_of
from tests.emulated_module import block_of_warps, gpu_module, plain
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

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


def test_lanes_of_a_read_have_banks_of_their_own() -> None:
    """Eight lanes at a time read 16 bytes each: two rows of a slab, all 32 banks."""
    module = gpu_module("flow_gpu", Warp())
    for first in range(0, 8, 2):
        places = [int(module.row_place(np.int32(row))) + 16 * quad for row in (first, first + 1) for quad in range(4)]
        assert sorted(place // 16 % 8 for place in places) == list(range(8))


def block(warps: int, outputs: int, depth: int, rows: int, parts: int, gated: int) -> tuple[Warp, np.ndarray, np.ndarray]:
    """(the emulator, out, what is expected of its live rows) of one block."""
    warp = Warp(warps)
    gpu = gpu_module("flow_gpu", warp)
    flow = plain(
        **{name: getattr(kernel_flow, name) for name in ("PARTIAL", "RING_BYTES", "WARPS")},
        open_flow=gpu.open_ring,
        begin_flow=gpu.begin,
        flow_operand=gpu.operand,
        flow_tile=gpu.TILE_OF["uint16", "uint16"],
        lines_of=source_of(kernel_flow.lines_of),
    )
    others = {
        "flow": flow,
        "project": block_of_warps(warp, warps),
        "behind_product": plain(row_scale=lambda squares, row, width, eps: np.float32(0.5)),
        "exponential": plain(exp=np.exp),
        "lang_storage": plain(narrow=lambda value, out: value),
        "tile": kernel_tile,
    }
    module = gpu_module("flow_project", warp, **others)
    x, weight = stored(floats(1, rows + 1, depth), "bfloat16"), stored(floats(3, outputs, depth), "bfloat16")
    out = np.full((rows + 1, outputs >> gated), -7, np.float32)
    partial, scale = np.full(kernel_flow.PARTIAL, np.nan, np.float32), np.full(8, np.nan, np.float32)
    squares, live = np.zeros((rows + 1, 1), np.float32), np.array([rows], np.int32)
    last = weight, np.float32(0), np.int32(0), np.int32(parts), np.int32(gated), live
    warp.run(lambda: module.flow_rows(RING, partial, scale, out, x, squares, *last))
    expected = widened(x)[:rows].astype(np.float64) @ widened(weight).T * 0.5
    if gated:
        gate, up = np.split(expected, 2, axis=1)
        expected = gate / (1 + np.exp(-gate)) * up
    return warp, out, expected


@pytest.mark.parametrize(
    ("warps", "outputs", "depth", "rows", "parts", "gated"), [(8, 70, 512, 2, 8, 0), (3, 64, 256, 9, 1, 1), (1, 24, 128, 3, 1, 0)]
)
def test_block(warps: int, outputs: int, depth: int, rows: int, parts: int, gated: int) -> None:
    """All warps of a block, several to a tile or several tiles at once; more rows than eight; both sides of the sums."""
    _, out, expected = block(warps, outputs, depth, rows, parts, gated)
    np.testing.assert_allclose(out[:rows], expected, rtol=1e-3, atol=1e-2)
    assert (out[rows] == -7).all()


@pytest.mark.parametrize("rows", [0, 9])
def test_nothing_is_under_way_when_a_block_ends(rows: int) -> None:
    """Its shared memory is another's then."""
    warp, out, _ = block(2, 40, 128, rows, 2, 0)
    assert (out[rows:] == -7).all()
    assert warp.runs_under_way() == 0
