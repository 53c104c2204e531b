"""The norm's scale of many rows by a single warp, beside those that multiply (kernels/wide_project.py)."""

from __future__ import annotations

import math
from typing import Any

from kernels.lang import SIMULATED, device_function, f32, i32
from kernels.lang_warp import lane, primitive, warp_size, warp_sum

if not SIMULATED:
    import kernels.wide_tile_gpu as wide_tile_gpu


def _gpu_squares(squares: Any, row: Any, last: Any) -> Any:
    return wide_tile_gpu.four_totals


@primitive(_gpu_squares)
def four_totals(squares, row, last):
    """This lane's shares of the sums of rows row .. row + 3 of squares, float32 [T, columns]; of row `last` instead of those behind
    it."""
    a, b, c, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
    for i in range(lane(), squares.shape[1], warp_size()):
        a += squares[row, i]
        b += squares[min(row + i32(1), last), i]
        c += squares[min(row + i32(2), last), i]
        d += squares[min(row + i32(3), last), i]
    return a, b, c, d


@device_function
def scale_of(total, width, eps):
    return f32(1.0) / f32(math.sqrt(total / f32(width) + eps))


@device_function
def wide_scales(scale, squares, token, rows, width, eps, scaled):
    """scale[t] = 1 / rms of row token + t < rows of the residual, from its sums of squares; 1 for rows that were normalised before.
    Called by a whole warp.

    Args:
        scale: float32 shared [rows + 3].
        squares: float32 [T, ceil(width / 8)].
        token, rows, width: int32.
        eps: float32.
        scaled: int32, 0 or 1.
    """
    t = i32(0)
    while t < rows:
        if scaled == i32(0):
            totals = four_totals(squares, token + t, token + rows - i32(1))
            a, b = warp_sum(totals[0]), warp_sum(totals[1])
            c, d = warp_sum(totals[2]), warp_sum(totals[3])
            if lane() == i32(0):
                scale[t], scale[t + i32(1)] = scale_of(a, width, eps), scale_of(b, width, eps)
                scale[t + i32(2)], scale[t + i32(3)] = scale_of(c, width, eps), scale_of(d, width, eps)
        elif lane() == i32(0):
            scale[t], scale[t + i32(1)], scale[t + i32(2)], scale[t + i32(3)] = f32(1.0), f32(1.0), f32(1.0), f32(1.0)
        t += i32(4)
