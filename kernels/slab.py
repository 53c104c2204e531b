"""The product that a head is made of, and a form of gate and up: slabs of eight weight rows through a ring that warps share.

As in kernels/flow.py a warp has columns of its own and keeps what eight rows of activations have there in registers. The ring is
the group's: each warp asks for its part of a slab, which is a run of memory, and all of them read what it has in their columns.
Fewer and longer copies than there, and a barrier of the block for each slab: slower while a launch is short, faster and steadier in
one of hundreds of microseconds. What row t yields depends on row t alone, and the order of its sum on the shape of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.flow import LINE
from kernels.lang import SIMULATED, device_function, f32, i32
from kernels.lang_overlap import on_hopper
from kernels.lang_storage import widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.tile import TILE_ROWS, TILE_TOKENS

HALF = TILE_ROWS // 2
"""Weight rows of a slab that always follow one another."""

if not SIMULATED:
    import kernels.slab_gpu as slab_gpu

SLAB_RING_BYTES = 0 if SIMULATED else slab_gpu.RING_BYTES
"""Dynamic shared memory of a block."""


def _gpu_stages(*types: Any) -> Callable[..., Any] | None:
    return slab_gpu.stages_of if on_hopper() else None


def _gpu_open(*types: Any) -> Callable[..., Any] | None:
    return slab_gpu.open_ring if on_hopper() else None


def _gpu_ask(ring: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return slab_gpu.ASK.get(str(weight.dtype)) if on_hopper() else None


def _gpu_pair(ring: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return slab_gpu.ASK_PAIR.get(str(weight.dtype)) if on_hopper() else None


def _gpu_products(ring: Any, partial: Any, to: Any, held: Any, x: Any, token: Any, weight: Any, *rest: Any) -> Any:
    return slab_gpu.PRODUCTS.get((str(x.dtype), str(weight.dtype))) if on_hopper() else None


@primitive(_gpu_stages)
def stages_of(depth, groups):
    """Slabs that the ring of each of so many groups of warps holds."""
    return i32(1)


@primitive(_gpu_open)
def open_slabs(ring, group, part, stages):
    """Make the ring of a group ready, once; cuda.syncthreads() behind it.

    Args:
        ring: float32 shared, SLAB_RING_BYTES of dynamic memory on a GPU.
        group, part: int32, warps that share a tile, and this one among them.
        stages: int32, of `stages_of`.
    """


@primitive(_gpu_ask)
def ask_slab(ring, weight, row, part, parts, group, stages, slot):
    """Ask for this part's rows of the slab that begins at weight row `row`; all parts do. Whoever read the slot before has passed
    a barrier of the block.

    Args:
        ring, group, part, stages: as in `open_slabs`.
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % LINE == 0, at most MOST_COLUMNS for a warp and rows that
            begin at 16 bytes (kernels/flow.py).
        row: int32, below N.
        parts: int32.
        slot: int32, its place in the ring.
    """


@primitive(_gpu_pair)
def ask_pair(ring, weight, row, second, part, group, stages, slot):
    """Ask for a slab of two halves, HALF weight rows from `row` on and as many from `row + second` on; part 0 asks for all of it,
    and may do so before a barrier behind `open_slabs`. Otherwise as `ask_slab`."""


@primitive(_gpu_products)
def slab_products(ring, partial, to, held, x, token, weight, row, second, line, lines, group, stages, slot, parity):
    """partial[to + 8 t + n] = sum over this warp's columns of x[token + t] * row n of the slab, for the rows of x from `token` on,
    TILE_TOKENS at most, and those weight rows that exist: HALF from `row` on and HALF from `row + second` on.

    Called by a whole warp; its lanes share the columns. The caller waits at a barrier before it reads `partial`.

    Args:
        partial: float32 shared, flat.
        to: int32, where this warp's sums go.
        held: of `flow_operand(x, token, line)`.
        x: [T, K], of the weights' type.
        token: int32, first row of x, below T.
        line, lines: int32, of `lines_of`.
        parity: uint32, 0 or 1, whether the ring has been gone round an even or odd number of times.
        second: int32, HALF for a slab of `ask_slab`.
        others: as in `ask_slab`.
    """
    begin, end = line * i32(LINE), min((line + lines) * i32(LINE), i32(weight.shape[1]))
    for t in range(min(i32(TILE_TOKENS), i32(x.shape[0]) - token)):
        for half in range(2):
            first, place = row + i32(half) * second, to + i32(t) * i32(TILE_ROWS) + i32(half) * i32(HALF)
            for n in range(min(i32(HALF), i32(weight.shape[0]) - first)):
                total = f32(0.0)
                for k in range(begin + lane(), end, warp_size()):
                    total += widen(x[token + t, k]) * widen(weight[first + n, k])
                total = warp_sum(total)
                if lane() == 0:
                    partial[place + i32(n)] = total


@device_function
def fill_slabs(ring, weight, row, step, limit, part, parts, group, stages, slot):
    """Ask for as many slabs as the ring holds, at `row`, `row + step` and so on below `limit`, into `slot` and those behind it: the
    row of the first that was not asked for."""
    asked = i32(0)
    while asked < stages:
        if row < limit:
            ask_slab(ring, weight, row, part, parts, group, stages, slot)
        slot = slot + i32(1) if slot + i32(1) < stages else i32(0)
        row += step
        asked += i32(1)
    return row


@device_function
def fill_pairs(ring, weight, row, second, step, limit, part, group, stages, slot):
    """`fill_slabs` with `ask_pair`."""
    asked = i32(0)
    while asked < stages:
        if row < limit:
            ask_pair(ring, weight, row, second, part, group, stages, slot)
        slot = i32(slot + i32(1)) if i32(slot + i32(1)) < stages else i32(0)
        row = i32(row + step)
        asked = i32(asked + i32(1))
    return row
