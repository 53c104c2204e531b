"""Token embedding into the residual stream, and the norm behind it whole, in one launch: for as many rows as fill a GPU."""

from __future__ import annotations

import math

from kernels.add_norm import times
from kernels.behind_product import EIGHT, multiplied, sum_of_eight
from kernels.block_reduce import block_total
from kernels.embed_squares import eight_zeros
from kernels.lang import MAX_THREADS, cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@device_function
def embed_norm_eights(residual, normed, table, gain, eps, row, token, known, scratch):
    """A row whose columns are a multiple of eight."""
    columns, last = i32(residual.shape[1]), i32(residual.shape[1]) - i32(EIGHT)
    own, step = i32(cuda.threadIdx.x) * i32(EIGHT), i32(cuda.blockDim.x) * i32(EIGHT)
    values, gains, squares, i = eight_zeros(), read_eight_flat(gain, min(own, last)), f32(0.0), own
    while i < columns:
        if known:
            values = read_eight(table, token, i)
        write_eight(residual, row, i, values)
        squares += sum_of_eight(multiplied(values, values))
        i += step
    scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(columns) + eps))
    i = own
    while i < columns:
        if step < columns:
            values, gains = read_eight(residual, row, i), read_eight_flat(gain, i)
        write_eight(normed, row, i, multiplied(times(values, scale), gains))
        i += step


@device_function
def embed_norm_columns(residual, normed, table, gain, eps, row, token, known, scratch):
    """A row of any columns, one at a time."""
    columns, squares = i32(residual.shape[1]), f32(0.0)
    for i in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        value = f32(0.0)
        if known:
            value = widen(table[token, i])
        residual[row, i] = value
        squares += value * value
    scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(columns) + eps))
    for i in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        normed[row, i] = narrow(residual[row, i] * scale * gain[i], normed)


@kernel(writes=("residual", "normed"), overlap=True)
def embed_norm(residual, normed, table, gain, input_ids, eps, num_tokens):
    """residual[t] = table[input_ids[t]], zeros for an id outside [0, V); normed[t] = RMSNorm(residual[t]) * gain, for the live
    tokens.

    Args:
        residual: float32 [T, H].
        normed: [T, H], any storage type.
        table: [V, H], any storage type.
        gain: float32 [H].
        input_ids: int32 [T].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, whole warps, threads over eight columns each, which belong to that thread. The sum of squares is a
    block reduction (its barriers are reached by every thread: the row loop depends on blockIdx alone). Safe under capture, and
    idempotent. Oracle: oracle_fused.embed_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    wait_for_launches()
    let_next_launch_start()
    row, live = i32(cuda.blockIdx.x), i32(num_tokens[0])
    while row < live:
        token = i32(input_ids[row])
        known = token >= i32(0) and token < i32(table.shape[0])
        if i32(residual.shape[1]) & i32(7) == i32(0):
            embed_norm_eights(residual, normed, table, gain, eps, row, token, known, scratch)
        else:
            embed_norm_columns(residual, normed, table, gain, eps, row, token, known, scratch)
        row += i32(cuda.gridDim.x)
