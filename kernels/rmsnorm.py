"""RMSNorm, alone and fused with the residual add that precedes it in every decoder layer (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import math

from kernels.block_reduce import block_total
from kernels.lang import MAX_THREADS, cuda, device_function, f32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen

COLUMNS_A_THREAD = 4
"""Columns that a thread keeps in registers between the sum and the scaling; a row of more is read twice."""

_REGISTERS = 64  # a block of MAX_THREADS


@device_function
def own_columns():
    """Columns of this thread, unsigned: an index that may be negative costs instructions and registers."""
    i, threads = u32(cuda.threadIdx.x), u32(cuda.blockDim.x)
    return i, u32(i + threads), u32(i + u32(2) * threads), u32(i + u32(3) * threads)


@device_function
def column_or_zero(x, row, i, width):
    """Element i of a row, 0 beyond its end."""
    if i < width:
        return widen(x[row, i])
    return f32(0.0)


@device_function
def gain_or_zero(weight, i, width):
    """As `column_or_zero`, of the gain."""
    if i < width:
        return weight[i]
    return f32(0.0)


@device_function
def normalize_columns(out, row, width, a, b, c, d, weight, eps, scratch):
    """out = the norm of a row of which each thread holds the columns tid, tid + threads, tid + 2 threads, tid + 3 threads.

    The gains are under way while the block sums. The order of the sum is that of the loop that a longer row takes.
    """
    i, j, k, m = own_columns()
    wa, wb = gain_or_zero(weight, i, width), gain_or_zero(weight, j, width)
    wc, wd = gain_or_zero(weight, k, width), gain_or_zero(weight, m, width)
    mean = block_total(a * a + b * b + c * c + d * d, scratch) / f32(width)
    scale = f32(1.0) / f32(math.sqrt(mean + eps))
    if i < width:
        out[row, i] = narrow(a * scale * wa, out)
    if j < width:
        out[row, j] = narrow(b * scale * wb, out)
    if k < width:
        out[row, k] = narrow(c * scale * wc, out)
    if m < width:
        out[row, m] = narrow(d * scale * wd, out)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True)
def rms_norm(out, x, weight, eps, num_tokens):
    """out[t] = x[t] / sqrt(mean(x[t]**2) + eps) * weight for the live tokens.

    Args:
        out: [T, H], any storage type; may be `x` itself.
        x: [T, H], any storage type.
        weight: float32 [H].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, threads over the columns, whole warps; with at most COLUMNS_A_THREAD columns a thread, all
    loads of a row are under way at once and it is read once. The sum of squares is a block reduction (its barriers are reached by
    every thread of the block: the row loop depends on blockIdx alone). Block `t` owns row t. Safe under capture.
    Oracle: oracle_forward.rms_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    wait_for_launches()
    let_next_launch_start()
    width = x.shape[1]
    if width <= COLUMNS_A_THREAD * cuda.blockDim.x:
        columns = u32(width)
        i, j, k, m = own_columns()
        row, live = u32(cuda.blockIdx.x), u32(num_tokens[0])
        while row < u32(x.shape[0]):  # nothing that is read waits for the number of live rows
            a, b = column_or_zero(x, row, i, columns), column_or_zero(x, row, j, columns)
            c, d = column_or_zero(x, row, k, columns), column_or_zero(x, row, m, columns)
            if row >= live:
                return
            normalize_columns(out, row, columns, a, b, c, d, weight, eps, scratch)
            row = u32(row + u32(cuda.gridDim.x))
        return
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            squares += widen(x[row, i]) * widen(x[row, i])
        mean = block_total(squares, scratch) / f32(width)
        scale = f32(1.0) / f32(math.sqrt(mean + eps))
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(widen(x[row, i]) * scale * weight[i], out)


@kernel(writes=("out", "residual"), max_registers=_REGISTERS, overlap=True)
def add_rms_norm(out, residual, x, weight, eps, num_tokens):
    """residual[t] += x[t]; out[t] = RMSNorm(residual[t]) * weight for the live tokens.

    Args:
        out: [T, H], any storage type.
        residual: float32 [T, H], updated in place.
        x: [T, H], any storage type, what the sublayer adds to the residual stream; may be `out` itself.
        weight: float32 [H].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch, ownership and syncs as in `rms_norm`. A thread reads back only those columns of `residual` that it wrote itself.
    Replaying it is not idempotent: the residual grows each time. Oracle: oracle_forward.add_rms_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    wait_for_launches()
    let_next_launch_start()
    width = x.shape[1]
    if width <= COLUMNS_A_THREAD * cuda.blockDim.x:
        columns = u32(width)
        i, j, k, m = own_columns()
        row, live = u32(cuda.blockIdx.x), u32(num_tokens[0])
        while row < u32(x.shape[0]):
            a, b = column_or_zero(residual, row, i, columns), column_or_zero(residual, row, j, columns)
            c, d = column_or_zero(residual, row, k, columns), column_or_zero(residual, row, m, columns)
            e, f = column_or_zero(x, row, i, columns), column_or_zero(x, row, j, columns)
            g, h = column_or_zero(x, row, k, columns), column_or_zero(x, row, m, columns)
            if row >= live:
                return
            a, b, c, d = a + e, b + f, c + g, d + h
            if i < columns:
                residual[row, i] = a
            if j < columns:
                residual[row, j] = b
            if k < columns:
                residual[row, k] = c
            if m < columns:
                residual[row, m] = d
            normalize_columns(out, row, columns, a, b, c, d, weight, eps, scratch)
            row = u32(row + u32(cuda.gridDim.x))
        return
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            value = residual[row, i] + widen(x[row, i])
            residual[row, i] = value
            squares += value * value
        mean = block_total(squares, scratch) / f32(width)
        scale = f32(1.0) / f32(math.sqrt(mean + eps))
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(residual[row, i] * scale * weight[i], out)
