"""The product that fused projections are made of: a warp multiplies one or two slabs of eight weight rows with eight rows of
activations.

The warps that share a tile take turns along its columns, a chunk each, so that together they read weight rows in long runs; what
they summed meets in shared memory, part by part. On a GPU with 16-bit weights a warp copies its chunks into a ring of its own, a
line of memory for each row, and hands them to the tensor cores as they lie (kernels/tile_gpu.py). The first chunks of weights are
asked for by `begin_products`, which touches nothing else: it may run while the kernel before is still at work. Tensor cores cost
the same for 1 row as for 8, and what row t yields depends on row t alone: the sum of a row has one order whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED, f32, i32
from kernels.lang_storage import widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum

if not SIMULATED:
    import kernels.tile_gpu as tile_gpu

TILE_ROWS = 8
"""Weight rows (outputs) of a slab."""

TILE_TOKENS = 8
"""Rows of activations that are multiplied at once."""

TILE = TILE_ROWS * TILE_TOKENS
"""Floats of shared memory that a part of a slab takes: [TILE_TOKENS, TILE_ROWS]."""

CHUNK = 64
"""Columns that a warp takes at a time: a line of memory, of 16-bit elements."""

MAX_WARPS = (0, 11, 5)
"""Warps of a block that multiply at most, by slabs: what their rings leave room for."""

RING = 5 * 3 * 3 * 256 + 4
"""Floats of shared memory that chunks under way take: 5 warps, 3 stages, 2 slabs and the activations, 1024 bytes each (with one
slab 11 warps and 2 stages), and room to begin at 16 bytes."""

PARTIAL = 11 * TILE


def _gpu_begin(ring: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return tile_gpu.BEGIN.get(str(weight.dtype))


def _gpu_rows(ring: Any, x: Any, *rest: Any) -> Callable[..., Any] | None:
    return tile_gpu.ROWS.get(str(x.dtype))


def _gpu_finish(ring: Any, partial: Any, x: Any, token: Any, weight: Any, *rest: Any) -> Callable[..., Any] | None:
    return tile_gpu.FINISH.get((str(x.dtype), str(weight.dtype)))


@primitive(_gpu_begin)
def begin_products(ring, weight, row, other, part, parts, warp, slabs, once):
    """Ask for the first weights of this warp: `begin_rows` and `finish_products` follow with the same arguments.

    Args:
        ring: float32 shared [RING].
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % 8 == 0 and rows that begin at 16 bytes.
        row, other: int32, first weight rows of the slabs; rows from N on yield what the last row yields, or nothing.
        part, parts: int32, this warp among those that share the columns of the tile.
        warp: int32, its place in the block, below MAX_WARPS[slabs].
        slabs: int32, 1 (`other` is ignored) or 2.
        once: int32, 1: they are the first to leave a GPU's L2, since nobody reads them again soon; 0: as L2 likes.
    """


@primitive(_gpu_rows)
def begin_rows(ring, x, token, part, parts, warp, slabs):
    """Ask for the activations that belong to them; arguments as in `finish_products`."""


@primitive(_gpu_finish)
def finish_products(ring, partial, x, token, weight, row, other, part, parts, warp, slabs, once):
    """partial[warp, slab, t, n] = sum over this part's columns of x[token + t] * weight[row + n] (or other + n), for the rows of x
    from `token` on, TILE_TOKENS at most.

    Called by a whole warp; its lanes share the columns. The caller waits at a barrier before it reads `partial`. Pads of x are
    multiplied as well, and do no harm to others: so nobody has to know how many rows live.

    Args:
        partial: float32 shared, flat: [warps, slabs, TILE_TOKENS, TILE_ROWS].
        x: [T, K], of the weights' type.
        token: int32, first row of x, below T.
        others: as in `begin_products`.
    """
    depth = i32(weight.shape[1])
    for slab in range(slabs):
        first = other if slab > 0 else row
        for t in range(min(i32(TILE_TOKENS), i32(x.shape[0]) - token)):
            for n in range(min(i32(TILE_ROWS), i32(weight.shape[0]) - first)):
                total = f32(0.0)
                begin = part * i32(CHUNK)
                while begin < depth:
                    for k in range(begin + lane(), min(begin + i32(CHUNK), depth), warp_size()):
                        total += widen(x[token + t, k]) * widen(weight[first + n, k])
                    begin += parts * i32(CHUNK)
                total = warp_sum(total)
                if lane() == 0:
                    partial[((warp * slabs + i32(slab)) * i32(TILE_TOKENS) + i32(t)) * i32(TILE_ROWS) + i32(n)] = total
