"""What stands behind a library's product where our own (kernels/project.py) would have done it itself: the norm's scale with
SwiGLU, the addition to the residual with what the next norm needs.

No row is normalised in a launch of its own: the product runs over residual * gain, and 1 / rms, from sums of squares of 8 columns,
is a factor of its result. So nothing here waits for a whole row, and a row is shared by as many blocks as it has columns for.
"""

from __future__ import annotations

import math

from kernels.exponential import exp
from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import lane, warp_size, warp_sum

EIGHT = 8
"""Columns that a thread takes at a time, and that a sum of squares is of."""


@device_function
def sum_of_eight(v):
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))


@device_function
def row_scale(squares, row, width, eps):
    """1 / rms of a row of the residual from its sums of squares, float32 [T, ceil(width / 8)]; every lane of a warp calls it."""
    total, columns = f32(0.0), i32(squares.shape[1])
    if columns & i32(7) == i32(0):
        i = lane() * i32(EIGHT)
        while i < columns:
            total += sum_of_eight(read_eight(squares, row, i))
            i += warp_size() * i32(EIGHT)
    else:
        i = lane()
        while i < columns:
            total += squares[row, i]
            i += warp_size()
    return f32(1.0) / f32(math.sqrt(warp_sum(total) / f32(width) + eps))


@device_function
def gated(gate, up, scale):
    """silu(gate scale) * up scale."""
    g = gate * scale
    return g / (f32(1.0) + exp(-g)) * (up * scale)


@device_function
def gated_eight(g, u, scale):
    return (
        gated(g[0], u[0], scale),
        gated(g[1], u[1], scale),
        gated(g[2], u[2], scale),
        gated(g[3], u[3], scale),
        gated(g[4], u[4], scale),
        gated(g[5], u[5], scale),
        gated(g[6], u[6], scale),
        gated(g[7], u[7], scale),
    )


@kernel(writes=("out",), overlap=True)
def norm_swiglu(out, gate_up, squares, width, eps, scaled, num_tokens):
    """out[t, i] = silu(gate) * up of gate, up = gate_up[t, i], gate_up[t, I + i], both divided by the rms of row t of the residual;
    scaled 1: not divided. For the live tokens.

    Args:
        out: [T, I], any storage type.
        gate_up: float32 [T, 2 I], gate first; on a GPU 16-byte accesses where I is a multiple of 8.
        squares: float32 [T, ceil(width / 8)], of the residual.
        width: int32, columns of the residual.
        eps: float32.
        scaled: int32, 0 or 1.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n) for any n, whole warps, threads over eight columns each. An element belongs to one thread. No barrier;
    safe under capture. Oracle: oracle_fused.norm_swiglu.
    """
    wait_for_launches()
    let_next_launch_start()
    columns, live = i32(out.shape[1]), i32(num_tokens[0])
    thread = i32(cuda.blockIdx.y) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    threads = i32(cuda.gridDim.y) * i32(cuda.blockDim.x)
    row = i32(cuda.blockIdx.x)
    while row < live:
        scale = f32(1.0)
        if columns & i32(7) == i32(0):
            i = thread * i32(EIGHT)
            own = min(i, columns - i32(EIGHT))
            gates, ups = read_eight(gate_up, row, own), read_eight(gate_up, row, columns + own)  # under way while the warp sums
            if scaled == i32(0):
                scale = row_scale(squares, row, width, eps)
            while i < columns:
                write_eight(out, row, i, gated_eight(gates, ups, scale))
                i += threads * i32(EIGHT)
                if i < columns:
                    gates, ups = read_eight(gate_up, row, i), read_eight(gate_up, row, columns + i)
        else:
            if scaled == i32(0):
                scale = row_scale(squares, row, width, eps)
            i = thread
            while i < columns:
                out[row, i] = narrow(gated(widen(gate_up[row, i]), widen(gate_up[row, columns + i]), scale), out)
                i += threads
        row += i32(cuda.gridDim.x)


@device_function
def added(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4], a[5] + b[5], a[6] + b[6], a[7] + b[7]


@device_function
def multiplied(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3], a[4] * b[4], a[5] * b[5], a[6] * b[6], a[7] * b[7]


@kernel(writes=("residual", "normed", "squares"), overlap=True)
def add_squares(residual, normed, squares, x, gain, num_tokens):
    """residual[t] += x[t] for the live tokens; normed = residual * gain, and squares, of the new residual.

    Args:
        residual: float32 [T, H], updated in place.
        normed: [T, H], any storage type.
        squares: float32 [T, ceil(H / 8)]: sums of squares of columns 8 j .. 8 j + 7.
        x: float32 [T, H].
        gain: float32 [H], of the norm behind.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n) for any n, threads over eight columns each, which belong to that thread. No barrier. Safe under
    capture, and not idempotent. Oracle: oracle_fused.add_squares.
    """
    wait_for_launches()
    let_next_launch_start()
    columns, tiles, live = i32(residual.shape[1]), i32(squares.shape[1]), i32(num_tokens[0])
    threads = i32(cuda.gridDim.y) * i32(cuda.blockDim.x)
    row = i32(cuda.blockIdx.x)
    while row < live:
        tile = i32(cuda.blockIdx.y) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
        while tile < tiles:
            i = tile * i32(EIGHT)
            if columns & i32(7) == i32(0):
                sums = added(read_eight(residual, row, i), read_eight(x, row, i))
                write_eight(residual, row, i, sums)
                write_eight(normed, row, i, multiplied(sums, read_eight_flat(gain, i)))
                squares[row, tile] = sum_of_eight(multiplied(sums, sums))
            else:
                total = f32(0.0)
                while i < min((tile + i32(1)) * i32(EIGHT), columns):
                    value = residual[row, i] + x[row, i]
                    residual[row, i] = value
                    normed[row, i] = narrow(value * gain[i], normed)
                    total += value * value
                    i += i32(1)
                squares[row, tile] = total
            tile += threads
        row += i32(cuda.gridDim.x)
