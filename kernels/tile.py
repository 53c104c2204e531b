"""The product that fused projections are made of: a warp multiplies eight rows of weights with up to sixteen of activations.

On a GPU with 16-bit weights a lane loads 16 bytes, eight elements of one weight row, and hands them to the tensor cores as they
lie (kernels/tile_gpu.py). Tensor cores cost the same for 1 row as for 16, and what row t yields depends on row t alone: the sum
of a row has one order whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED, f32, i32
from kernels.lang_storage import by_dtype, narrow, widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum

if not SIMULATED:
    import kernels.tile_gpu as tile_gpu

TILE_ROWS = 8
"""Weight rows (outputs) of a tile."""

TILE_TOKENS = 16
"""Rows of activations of a tile."""

TILE = TILE_ROWS * TILE_TOKENS
"""Floats of shared memory that a tile's sums take: [TILE_TOKENS, TILE_ROWS]."""

RING = 1024
"""Floats of shared memory that a warp's weights under way take: eight chunks, 16 bytes a lane and chunk."""

RING_PAIR = 2 * RING

CHUNK = 32
"""Columns that a warp takes at a time: ranges of columns begin at multiples of it."""


def _times_gain(x, gain, column, weight):
    return widen(narrow(x * gain[column], weight))


def _as_stored(x, gain, column, weight):
    return widen(x)


operand = by_dtype(
    "operand",
    0,
    {"float32": _times_gain, "float16": _as_stored, "uint16": _as_stored, "int16": _as_stored},
    """operand(x, gain, column, weight): a float32 `x` is of the residual: times the norm's gain, rounded as an element of `weight`;
    a 16-bit `x` is an activation, and is only widened.""",
)


def _gpu_form(forms: str) -> Callable[..., Callable[..., Any] | None]:
    def choose(ring: Any, partial: Any, slot: Any, x: Any, gain: Any, token: Any, rows: Any, weight: Any, *rest: Any) -> Any:
        return getattr(tile_gpu, forms).get((str(x.dtype), str(weight.dtype)))

    return choose


@primitive(_gpu_form("SINGLE"))
def tile_dot(ring, partial, slot, x, gain, token, rows, weight, row, begin, end):
    """partial[slot, t, n] = sum over columns begin..end of x[token + t] * weight[row + n], for t < rows, n < TILE_ROWS.

    Called by a whole warp; its lanes share the columns. The caller waits at a barrier before it reads `partial`.

    Args:
        ring: float32 shared [RING a warp of the block, and 4]: weights under way; RING_PAIR for `tile_dot_pair`.
        partial: float32 shared, flat: [slots, TILE_TOKENS, TILE_ROWS].
        slot: int32.
        x: [T, K], float32 residual (see `operand`) or 16-bit activations of the weights' type.
        gain: float32 [K], of the norm that precedes the product (ignored where x is 16-bit), or None: x as it is.
        token, rows: int32, first row of x, and how many of them: 1..TILE_TOKENS.
        weight: [N, K], 16-bit or float32. A GPU's 16-bit form needs K % 8 == 0 and rows that begin at 16 bytes.
        row: int32, first row of the tile; rows from N on yield what the last row yields, or nothing.
        begin, end: int32, begin a multiple of CHUNK.
    """
    for t in range(rows):
        for n in range(min(TILE_ROWS, weight.shape[0] - row)):
            total = f32(0.0)
            for k in range(begin + lane(), end, warp_size()):
                if gain is None:
                    total += widen(x[token + t, k]) * widen(weight[row + n, k])
                else:
                    total += operand(x[token + t, k], gain, k, weight) * widen(weight[row + n, k])
            total = warp_sum(total)
            if lane() == 0:
                partial[slot * i32(TILE) + t * i32(TILE_ROWS) + n] = total


@primitive(_gpu_form("DOUBLE"))
def tile_dot_pair(ring, partial, slot, x, gain, token, rows, weight, row, other, begin, end):
    """`tile_dot` of the tiles at `row` and at `other`, into slots `slot` and `slot + 1`; x is fetched once for both."""
    tile_dot(ring, partial, slot, x, gain, token, rows, weight, row, begin, end)
    tile_dot(ring, partial, slot + i32(1), x, gain, token, rows, weight, other, begin, end)
