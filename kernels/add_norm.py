"""What a library's product adds to the residual, and the norm behind the sum, in one launch: eight columns of a thread at once.

Where a row's norm is wanted whole, and there are as many rows as fill a GPU (kernels/behind_product.py has a row shared by blocks,
and its scale left to who comes next). With a tap the new residual goes to a drafter's features too (kernels/tap.py).
"""

from __future__ import annotations

import math

from kernels.behind_product import EIGHT, added, multiplied, sum_of_eight
from kernels.block_reduce import block_total
from kernels.lang import MAX_THREADS, cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import early_count, let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen

MOST_PARTS = 6
"""Parts of a sum that a thread has under way at once."""

_REGISTERS = 64  # a block of MAX_THREADS


@device_function
def times(v, scale):
    return v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale, v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale


@device_function
def tapped_eight(features, row, i, column, sums):
    """The sums in a drafter's features, where there are any (None: not)."""
    if features is not None:
        write_eight(features, row, column + i, sums)


@device_function
def sum_of_parts(x, row, i, columns, parts):
    """Sum over the parts that lie side by side in a row of x, in order; all of them are under way at once. parts None: x itself."""
    a = read_eight(x, row, i)
    if parts is not None:
        last = parts - i32(1)
        b, c = read_eight(x, row, i + min(i32(1), last) * columns), read_eight(x, row, i + min(i32(2), last) * columns)
        d, e = read_eight(x, row, i + min(i32(3), last) * columns), read_eight(x, row, i + min(i32(4), last) * columns)
        f = read_eight(x, row, i + last * columns)
        if parts > i32(1):
            a = added(a, b)
        if parts > i32(2):
            a = added(a, c)
        if parts > i32(3):
            a = added(a, d)
        if parts > i32(4):
            a = added(a, e)
        if parts > i32(5):
            a = added(a, f)
    return a


@device_function
def add_norm_eights(residual, normed, features, x, gain, eps, column, parts, num_tokens, scratch):
    """Both kernels below for a multiple of eight columns, and with `parts` those of kernels/wide_parts.py."""
    columns, last = i32(residual.shape[1]), i32(residual.shape[1]) - i32(EIGHT)
    own, step = i32(cuda.threadIdx.x) * i32(EIGHT), i32(cuda.blockDim.x) * i32(EIGHT)
    row, live = i32(cuda.blockIdx.x), early_count(num_tokens)
    gains = read_eight_flat(gain, min(own, last))  # nobody writes them: under way before the product has ended
    wait_for_launches()
    let_next_launch_start()
    while row < live:
        sums, squares, i = gains, f32(0.0), own
        while i < columns:
            sums = added(read_eight(residual, row, i), sum_of_parts(x, row, i, columns, parts))
            write_eight(residual, row, i, sums)
            tapped_eight(features, row, i, column, sums)
            squares += sum_of_eight(multiplied(sums, sums))
            i += step
        scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(columns) + eps))
        i = own
        while i < columns:
            if step < columns:
                sums, gains = read_eight(residual, row, i), read_eight_flat(gain, i)
            write_eight(normed, row, i, multiplied(times(sums, scale), gains))
            i += step
        row += i32(cuda.gridDim.x)


@device_function
def add_norm_columns(residual, normed, features, x, gain, eps, column, num_tokens, scratch):
    """The same for any columns, one at a time."""
    wait_for_launches()
    let_next_launch_start()
    columns, row, live = i32(residual.shape[1]), i32(cuda.blockIdx.x), i32(num_tokens[0])
    while row < live:
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            value = residual[row, i] + widen(x[row, i])
            residual[row, i] = value
            if features is not None:
                features[row, column + i] = narrow(value, features)
            squares += value * value
        scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(columns) + eps))
        for i in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            normed[row, i] = narrow(residual[row, i] * scale * gain[i], normed)
        row += i32(cuda.gridDim.x)


@kernel(writes=("residual", "normed"), max_registers=_REGISTERS, overlap=True, early=("gain", "num_tokens"))
def add_norm(residual, normed, x, gain, eps, num_tokens):
    """residual[t] += x[t]; normed[t] = RMSNorm(residual[t]) * gain for the live tokens.

    Args:
        residual: float32 [T, H], updated in place.
        normed: [T, H], any storage type.
        x: [T, H], float32 or a storage type.
        gain: float32 [H].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, whole warps, threads over eight columns each, which belong to that thread. The sum of squares is a
    block reduction (its barriers are reached by every thread: the row loop depends on blockIdx alone). Safe under capture, and not
    idempotent. Oracle: oracle_fused.add_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    if i32(residual.shape[1]) & i32(7) == i32(0):
        add_norm_eights(residual, normed, None, x, gain, eps, i32(0), None, num_tokens, scratch)
    else:
        add_norm_columns(residual, normed, None, x, gain, eps, i32(0), num_tokens, scratch)


@kernel(writes=("residual", "normed", "features"), max_registers=_REGISTERS, overlap=True, early=("gain", "num_tokens"))
def add_norm_tap(residual, normed, features, x, gain, eps, column, num_tokens):
    """`add_norm`, and features[t, column : column + H] = the new residual.

    Args:
        features: [T, F], any storage type; F and column are multiples of 8 where H is.
        column: int32, first column of the tap.
        others: as in `add_norm`.

    Launch, ownership and barriers as there. Safe under capture, and not idempotent. Oracle: oracle_fused.add_norm_tap.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    if i32(residual.shape[1]) & i32(7) == i32(0):
        add_norm_eights(residual, normed, features, x, gain, eps, column, None, num_tokens, scratch)
    else:
        add_norm_columns(residual, normed, features, x, gain, eps, column, num_tokens, scratch)
