"""The product of short rows that a warp holds in registers: sixteen weight rows of HELD_COLUMNS, whole.

Nothing is shared but the activations, and nobody waits for anybody: of each line that is multiplied the warp asks for the same line
of its next tile, so that a tile is always under way. Rows of another width would leave registers empty, or have no room
(kernels/flow.py divides longer ones among warps). What row t yields depends on row t alone, and a sum has one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED, f32, i32
from kernels.lang_storage import widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.tile import TILE_ROWS, TILE_TOKENS

if not SIMULATED:
    import kernels.held_gpu as held_gpu

HELD_COLUMNS = 576
"""Columns of a weight row: nine lines of memory, of 16-bit elements. Two slabs of them are 144 registers of each lane."""

HELD_ROWS = 2 * TILE_ROWS
"""Weight rows of a tile."""

HELD_TILE = HELD_ROWS * TILE_TOKENS
"""Sums of a tile: [TILE_TOKENS, HELD_ROWS]."""

HELD_WARPS = 8
"""Warps of a block that multiply at most: their registers are all that a multiprocessor has."""

OPERAND = 2308
"""Floats of shared memory for the activations: TILE_TOKENS rows of HELD_COLUMNS 16-bit elements, and room to begin at 16 bytes."""


def _gpu_hold(weight: Any, row: Any) -> Callable[..., Any] | None:
    return held_gpu.HOLD.get(str(weight.dtype))


def _gpu_lay_out(operand: Any, x: Any, token: Any) -> Callable[..., Any] | None:
    return held_gpu.LAY_OUT.get(str(x.dtype))


def _gpu_products(operand: Any, partial: Any, to: Any, held: Any, x: Any, token: Any, weight: Any, *rest: Any) -> Any:
    return held_gpu.PRODUCTS.get((str(x.dtype), str(weight.dtype)))


@primitive(_gpu_hold)
def hold_tile(weight, row):
    """Ask for the HELD_ROWS weight rows from `row` on; of a tile that begins at N or later for none.

    Args:
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K == HELD_COLUMNS.
        row: int32.
    """
    return i32(0)


@primitive(_gpu_lay_out)
def lay_out_rows(operand, x, token):
    """The rows of x from `token` on, TILE_TOKENS at most, to shared memory as `held_products` reads them: by the whole block, with
    cuda.syncthreads() behind it.

    Args:
        operand: float32 shared [OPERAND].
        x: [T, K], of the weights' type.
        token: int32, below T.
    """


@primitive(_gpu_products)
def held_products(operand, partial, to, held, x, token, weight, row, after):
    """partial[to + 16 t + n] = sum of x[token + t] * weight[row + n], for the rows of x from `token` on, TILE_TOKENS at most, and
    HELD_ROWS weight rows, if there are as many. Returns what `hold_tile(weight, after)` would.

    Called by a whole warp; its lanes share the columns. The warp waits at a barrier before it reads `partial`.

    Args:
        operand: of `lay_out_rows(operand, x, token)`.
        partial: float32 shared, flat.
        to: int32, where this warp's sums go.
        held: of `hold_tile(weight, row)`, or of the call before.
        x, token, weight: as above.
        row: int32, below N.
        after: int32, the tile that comes next; N: none.
    """
    for t in range(min(i32(TILE_TOKENS), i32(x.shape[0]) - token)):
        for n in range(min(i32(HELD_ROWS), i32(weight.shape[0]) - row)):
            total = f32(0.0)
            for k in range(lane(), weight.shape[1], warp_size()):
                total += widen(x[token + t, k]) * widen(weight[row + n, k])
            total = warp_sum(total)
            if lane() == 0:
                partial[to + i32(t) * i32(HELD_ROWS) + i32(n)] = total
    return held
