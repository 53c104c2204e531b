"""The product whose weights flow: each warp of a block has columns of its own, keeps what eight rows of activations have there in
registers, and passes over slab after slab of weight rows.

The warps that share a tile of two slabs divide its columns into runs, and their sums meet in shared memory. On a GPU from compute
capability 9 on with 16-bit weights a warp copies its runs into a ring of its own, deep enough for what memory has under way, and
asks for the next stage of it whenever one is multiplied, across tiles: nothing but the sums is waited for (kernels/flow_gpu.py).
The first stages are asked for by `begin_flow`, which touches nothing but weights: it may run while the kernel before is at work.
What row t yields depends on row t alone, and the order of its sum on the shape of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED, device_function, f32, i32
from kernels.lang_overlap import on_hopper
from kernels.lang_storage import widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.project import ceil_div
from kernels.tile import TILE, TILE_ROWS, TILE_TOKENS

if not SIMULATED:
    import kernels.flow_gpu as flow_gpu

WARPS = 8
"""Warps of a block that multiply at most."""

MOST_COLUMNS = 512
"""Columns that a warp has at most: a lane keeps 64 registers of activations."""

LINE = 64
"""Depths are multiples of it on a GPU: a line of memory, of 16-bit elements."""

PARTIAL = 2 * WARPS * 2 * TILE
"""Floats of shared memory for the sums: of two tiles, each warp, two slabs."""

RING_BYTES = 0 if SIMULATED else flow_gpu.RING_BYTES
"""Dynamic shared memory of a block."""


def _gpu_open(ring: Any, warp: Any) -> Callable[..., Any] | None:
    return flow_gpu.open_ring if on_hopper() else None


def _gpu_begin(ring: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return flow_gpu.BEGIN.get(str(weight.dtype)) if on_hopper() else None


def _gpu_operand(x: Any, *rest: Any) -> Callable[..., Any] | None:
    return flow_gpu.OPERAND.get(str(x.dtype)) if on_hopper() else None


def _gpu_tile(
    ring: Any, partial: Any, to: Any, held: Any, x: Any, token: Any, weight: Any, *rest: Any
) -> Callable[..., Any] | None:
    return flow_gpu.TILE_OF.get((str(x.dtype), str(weight.dtype))) if on_hopper() else None


@device_function
def lines_of(depth, part, parts):
    """(first, how many) of a row's lines that are of a part of so many; all have equally many, the last ones fewer or none."""
    lines = ceil_div(depth, i32(LINE))
    each = ceil_div(lines, parts)
    return part * each, max(min(each, lines - part * each), i32(0))


@primitive(_gpu_open)
def open_flow(ring, warp):
    """Make a warp's ring ready, once, before `begin_flow`.

    Args:
        ring: float32 shared, RING_BYTES of dynamic memory on a GPU.
        warp: int32, its place in the block, below WARPS.
    """


@primitive(_gpu_begin)
def begin_flow(ring, weight, row, second, step, limit, line, lines, warp, turn):
    """Ask for the first weights of this warp; one `flow_tile` after the other follows, from `row` on up to `limit`.

    Args:
        ring, warp: as in `open_flow`.
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % LINE == 0, at most MOST_COLUMNS for a warp and rows
            that begin at 16 bytes.
        row, second: int32, the slabs of a tile begin at weight rows `row` and `row + second`; rows from N on yield what the last
            row yields, or nothing.
        step, limit: int32, the next tile is at row + step, if that is below `limit`.
        line, lines: int32, of `lines_of`.
        turn: uint32, 0 at first, then what the last `flow_tile` returned.
    """


@primitive(_gpu_operand)
def flow_operand(x, token, line):
    """What `flow_tile` multiplies with: the columns from `line` on of rows x[token ..], TILE_TOKENS of them; pads do no harm."""
    return i32(0)


@primitive(_gpu_tile)
def flow_tile(ring, partial, to, held, x, token, weight, row, second, step, limit, line, lines, warp, turn):
    """partial[to + 64 slab + 8 t + n] = sum over this warp's columns of x[token + t] * weight[row + slab * second + n], for two
    slabs and the rows of x from `token` on, TILE_TOKENS at most. Returns the turn.

    Called by a whole warp; its lanes share the columns. The caller waits at a barrier before it reads `partial`.

    Args:
        partial: float32 shared, flat.
        to: int32, where this warp's sums go.
        held: of `flow_operand(x, token, line)`.
        x: [T, K], of the weights' type.
        token: int32, first row of x, below T.
        others: as in `begin_flow`.
    """
    begin, end = line * i32(LINE), min((line + lines) * i32(LINE), i32(weight.shape[1]))
    for slab in range(2):
        first = row + i32(slab) * second
        for t in range(min(i32(TILE_TOKENS), i32(x.shape[0]) - token)):
            for n in range(min(i32(TILE_ROWS), i32(weight.shape[0]) - first)):
                total = f32(0.0)
                for k in range(begin + lane(), end, warp_size()):
                    total += widen(x[token + t, k]) * widen(weight[first + n, k])
                total = warp_sum(total)
                if lane() == 0:
                    partial[to + i32(slab) * i32(TILE) + i32(t) * i32(TILE_ROWS) + i32(n)] = total
    return turn
