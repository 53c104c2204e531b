"""The GPU forms of the products by slabs, from their own source in an emulated block: fragments, tails, best columns, SwiGLU."""

from __future__ import annotations

from types import FunctionType, ModuleType

import numpy as np
import pytest

from kernels import flow as kernel_flow
from kernels import slab as kernel_slab
from kernels import tile as kernel_tile
from kernels.flow_project import flow_total
from kernels.lang import source_of
from tests.emulated_module import block_of_warps, gpu_module, plain
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

RING = np.zeros(1, np.float32)  # its slots are the emulator's own
NUMPY = {"bfloat16": "uint16", "float16": "float16"}


def slabs_of(warp: Warp, warps: int, storage: str = "bfloat16") -> dict[str, ModuleType]:
    """What a kernel of slabs has from other modules, in an emulated block."""
    flow_gpu, kind = gpu_module("flow_gpu", warp), NUMPY[storage]
    gpu = gpu_module("slab_gpu", warp, flow_gpu=flow_gpu)
    fill, pairs = source_of(kernel_slab.fill_slabs), source_of(kernel_slab.fill_pairs)
    assert fill is not None
    assert pairs is not None
    slab = plain(
        HALF=kernel_slab.HALF,
        SLAB_RING_BYTES=kernel_slab.SLAB_RING_BYTES,
        stages_of=gpu.stages_of,
        open_slabs=gpu.open_ring,
        ask_slab=gpu.ask,
        ask_pair=gpu.ask_pair,
        fill_slabs=FunctionType(fill.__code__, fill.__globals__ | {"ask_slab": gpu.ask}),
        fill_pairs=FunctionType(pairs.__code__, pairs.__globals__ | {"ask_pair": gpu.ask_pair}),
        slab_products=gpu.PRODUCTS[kind, kind],
    )
    flow = plain(
        PARTIAL=kernel_flow.PARTIAL,
        WARPS=kernel_flow.WARPS,
        flow_operand=flow_gpu.operand,
        lines_of=source_of(kernel_flow.lines_of),
    )
    project = plain(flow_total=source_of(flow_total), scales=lambda scale, *rest: scale.fill(0.5))
    return {"slab": slab, "flow": flow, "flow_project": project, "project": block_of_warps(warp, warps), "tile": kernel_tile}


def head(
    warps: int, outputs: int, depth: int, rows: int, parts: int, storage: str = "bfloat16"
) -> tuple[Warp, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(the emulator, logits, best column, their expected values) of a head of one block."""
    warp = Warp(warps)
    module = gpu_module("flow_head", warp, **slabs_of(warp, warps, storage))
    x, weight = stored(floats(1, rows + 1, depth), storage), stored(floats(3, outputs, depth), storage)
    logits, value = np.full((rows + 1, outputs), -7, np.float32), np.full((1, rows + 1), -7, np.float32)
    column = np.full((1, rows + 1), -7, np.int32)
    partial = np.full(kernel_flow.PARTIAL, np.nan, np.float32)
    cells = np.full(8 * 64, np.nan, np.float32), np.full(8 * 64, -7, np.int32)
    last = x, weight, np.int32(outputs - 1), np.int32(parts), np.array([rows], np.int32)
    warp.run(lambda: module.head_rows(RING, partial, *cells, logits, value, column, *last))
    expected = widened(x)[:rows].astype(np.float64) @ widened(weight).T
    return warp, logits, column[0], expected, expected[:, : outputs - 1].argmax(axis=1)


def gate_up(warps: int, outputs: int, depth: int, rows: int, parts: int) -> tuple[Warp, np.ndarray, np.ndarray]:
    """(the emulator, out, what is expected of its live rows) of gate and up of one block."""
    warp = Warp(warps)
    behind = plain(gated=lambda gate, up, scale: gate * scale / (np.float32(1) + np.exp(-gate * scale)) * (up * scale))
    storage = plain(narrow=lambda value, out: value)
    module = gpu_module("slab_gate_up", warp, behind_product=behind, lang_storage=storage, **slabs_of(warp, warps))
    x, weight = stored(floats(1, rows + 1, depth), "bfloat16"), stored(floats(3, 2 * outputs, depth), "bfloat16")
    out = np.full((rows + 1, outputs), -7, np.float32)
    partial, scale = np.full(kernel_flow.PARTIAL, np.nan, np.float32), np.full(8, np.nan, np.float32)
    squares, live = np.zeros((rows + 1, 1), np.float32), np.array([rows], np.int32)
    last = x, squares, weight, np.float32(0), np.int32(0), np.int32(parts), live
    warp.run(lambda: module.gate_up_rows(RING, partial, scale, out, *last))
    gate, up = np.split(widened(x)[:rows].astype(np.float64) @ widened(weight).T * 0.5, 2, axis=1)
    return warp, out, gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize(
    ("warps", "outputs", "depth", "rows", "parts", "storage"),
    [
        (8, 70, 512, 2, 8, "bfloat16"),  # the last slab is not whole
        (1, 24, 512, 3, 1, "float16"),  # all that a warp can hold
        (6, 150, 576, 9, 3, "bfloat16"),  # two tiles at once, rows beyond eight: the ring goes on from where it was
        (4, 100, 576, 9, 2, "float16"),  # parts of nine lines, the last tile of one group alone
        (5, 264, 128, 11, 2, "bfloat16"),  # a warp without work; the ring is gone round
    ],
)
def test_head(warps: int, outputs: int, depth: int, rows: int, parts: int, storage: str) -> None:
    _, logits, column, expected, best = head(warps, outputs, depth, rows, parts, storage)
    np.testing.assert_allclose(logits[:rows], expected, rtol=1e-3, atol=2e-2)
    np.testing.assert_array_equal(column[:rows], best)
    assert (logits[rows] == -7).all()
    assert column[rows] == -7


@pytest.mark.parametrize(
    ("warps", "outputs", "depth", "rows", "parts"),
    [
        (8, 35, 512, 2, 8),  # the last slab is not whole
        (1, 12, 512, 3, 1),  # gate and up are one warp's
        (6, 75, 576, 9, 3),  # two tiles at once, rows beyond eight
        (5, 66, 128, 11, 2),  # a warp without work; the ring is gone round
        (8, 3, 512, 1, 8),  # less than a slab
    ],
)
def test_gate_up(warps: int, outputs: int, depth: int, rows: int, parts: int) -> None:
    _, out, expected = gate_up(warps, outputs, depth, rows, parts)
    np.testing.assert_allclose(out[:rows], expected, rtol=1e-3, atol=2e-2)
    assert (out[rows] == -7).all()


@pytest.mark.parametrize("rows", [0, 9])
def test_nothing_is_under_way_when_a_block_ends(rows: int) -> None:
    """Its shared memory is another's then."""
    warp, logits, _, _, _ = head(2, 40, 128, rows, 2)
    assert (logits[rows:] == -7).all()
    assert warp.runs_under_way() == 0
    warp, out, _ = gate_up(2, 20, 128, rows, 2)
    assert (out[rows:] == -7).all()
    assert warp.runs_under_way() == 0


def test_lanes_of_a_read_have_banks_of_their_own() -> None:
    """Eight lanes at a time read 16 bytes each: of two rows of a slab, from all 32 banks."""
    warp = Warp()
    module = gpu_module("slab_gpu", warp, flow_gpu=gpu_module("flow_gpu", warp))
    for first in range(0, 8, 2):
        places = [int(module.place_of(np.int32(row), np.int32(quad))) for row in (first, first + 1) for quad in range(4)]
        assert sorted(place // 16 for place in places) == list(range(8))
