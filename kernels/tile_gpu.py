"""The GPU's forms of the tile products (kernels/tile.py): 16-byte loads straight into the operands of the tensor cores.

Lane 4 g + q of a warp holds columns 8 q .. 8 q + 7 of each chunk of 32, of weight row g and of activation rows g and g + 8: one
load each, two products. Which columns the hardware takes for its k = 0..15 does not matter as long as both operands agree.
A lane whose row does not exist takes the last that does; its sums are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_mma import floats_of, load16, mma_bfloat16, mma_float16, pair_bfloat16, pair_float16, stream16
from kernels.lang_warp import lane

_ROWS = 8
_CHUNK = 32
_AHEAD = 4 * _CHUNK


@device_function
def no_words():
    """Sixteen bytes of zero."""
    return u32(0), u32(0), u32(0), u32(0)


@device_function
def no_sums():
    """Four sums of nothing."""
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@device_function
def keep_sums(partial, slot, sums):
    """partial[slot, token, row] = a lane's four sums: tokens g and g + 8, rows 2 q and 2 q + 1."""
    group, quad = lane() >> i32(2), lane() & i32(3)
    at = slot * i32(16 * _ROWS) + group * i32(_ROWS) + quad * i32(2)
    partial[at] = sums[0]
    partial[at + i32(1)] = sums[1]
    partial[at + i32(8 * _ROWS)] = sums[2]
    partial[at + i32(8 * _ROWS + 1)] = sums[3]


@device_function
def weight_offset(weight, row):
    """Where this lane's columns of the tile's weights begin."""
    group, quad = lane() >> i32(2), lane() & i32(3)
    return i64(min(row + group, i32(weight.shape[0]) - i32(1))) * i64(weight.shape[1]) + i64(quad * i32(8))


@device_function
def token_offset(x, token, rows, place):
    """Where this lane's columns of activation row `place` (g or g + 8) begin."""
    return i64(token + min(place, rows - i32(1))) * i64(x.shape[1]) + i64((lane() & i32(3)) * i32(8))


@device_function
def plain_operand(x, gain, offset, column):
    """Eight 16-bit activations as they lie."""
    return load16(x, offset)


def _normed_operand(pair: Any) -> Any:
    @device_function
    def normed_operand(x, gain, offset, column):
        """Eight float32 of the residual times the norm's gain, rounded to the weights' type."""
        low, high = floats_of(load16(x, offset)), floats_of(load16(x, offset + i64(4)))
        first, second = floats_of(load16(gain, column)), floats_of(load16(gain, column + i64(4)))
        return (
            pair(low[0] * first[0], low[1] * first[1]),
            pair(low[2] * first[2], low[3] * first[3]),
            pair(high[0] * second[0], high[1] * second[1]),
            pair(high[2] * second[2], high[3] * second[3]),
        )

    return normed_operand


def _single(mma: Any, operand: Any) -> Callable[..., Any]:
    """Eight weight rows."""

    @device_function
    def step(sums, x, gain, near, far, column, wide, w):
        n, f = operand(x, gain, near, column), no_words()
        if wide:
            f = operand(x, gain, far, column)
        sums = mma(sums, n[0], f[0], n[1], f[1], w[0], w[1])
        return mma(sums, n[2], f[2], n[3], f[3], w[2], w[3])

    def dot(partial, slot, x, gain, token, rows, weight, row, begin, end):
        group, column = lane() >> i32(2), i64((lane() & i32(3)) * i32(8))
        w, wide = weight_offset(weight, row), rows > i32(8)
        near, far = token_offset(x, token, rows, group), token_offset(x, token, rows, group + i32(8))
        sums = no_sums()
        k, stop = i64(begin), i64(end)
        while k + i64(_AHEAD) <= stop:
            w0, w1 = stream16(weight, w + k), stream16(weight, w + k + i64(32))
            w2, w3 = stream16(weight, w + k + i64(64)), stream16(weight, w + k + i64(96))
            sums = step(sums, x, gain, near + k, far + k, column + k, wide, w0)
            sums = step(sums, x, gain, near + k + i64(32), far + k + i64(32), column + k + i64(32), wide, w1)
            sums = step(sums, x, gain, near + k + i64(64), far + k + i64(64), column + k + i64(64), wide, w2)
            sums = step(sums, x, gain, near + k + i64(96), far + k + i64(96), column + k + i64(96), wide, w3)
            k += i64(_AHEAD)
        while k < stop:
            here = min(k, stop - i64(8) - column)  # past the end: any columns, times zero
            w0 = no_words()
            if here == k:
                w0 = stream16(weight, w + k)
            sums = step(sums, x, gain, near + here, far + here, column + here, wide, w0)
            k += i64(_CHUNK)
        keep_sums(partial, slot, sums)

    return dot


def _double(mma: Any, operand: Any) -> Callable[..., Any]:
    """Twice eight weight rows, from `row` and from `other` on: the activations are fetched once for both."""

    @device_function
    def step(sums, others, x, gain, near, far, column, wide, w, v):
        n, f = operand(x, gain, near, column), no_words()
        if wide:
            f = operand(x, gain, far, column)
        sums, others = mma(sums, n[0], f[0], n[1], f[1], w[0], w[1]), mma(others, n[0], f[0], n[1], f[1], v[0], v[1])
        return mma(sums, n[2], f[2], n[3], f[3], w[2], w[3]), mma(others, n[2], f[2], n[3], f[3], v[2], v[3])

    def dot(partial, slot, x, gain, token, rows, weight, row, other, begin, end):
        group, column = lane() >> i32(2), i64((lane() & i32(3)) * i32(8))
        w, v, wide = weight_offset(weight, row), weight_offset(weight, other), rows > i32(8)
        near, far = token_offset(x, token, rows, group), token_offset(x, token, rows, group + i32(8))
        sums, others = no_sums(), no_sums()
        k, stop = i64(begin), i64(end)
        while k + i64(_AHEAD) <= stop:
            w0, v0 = stream16(weight, w + k), stream16(weight, v + k)
            w1, v1 = stream16(weight, w + k + i64(32)), stream16(weight, v + k + i64(32))
            w2, v2 = stream16(weight, w + k + i64(64)), stream16(weight, v + k + i64(64))
            w3, v3 = stream16(weight, w + k + i64(96)), stream16(weight, v + k + i64(96))
            sums, others = step(sums, others, x, gain, near + k, far + k, column + k, wide, w0, v0)
            at = k + i64(32)
            sums, others = step(sums, others, x, gain, near + at, far + at, column + at, wide, w1, v1)
            at = k + i64(64)
            sums, others = step(sums, others, x, gain, near + at, far + at, column + at, wide, w2, v2)
            at = k + i64(96)
            sums, others = step(sums, others, x, gain, near + at, far + at, column + at, wide, w3, v3)
            k += i64(_AHEAD)
        while k < stop:
            here = min(k, stop - i64(8) - column)  # past the end: any columns, times zero
            w0, v0 = no_words(), no_words()
            if here == k:
                w0, v0 = stream16(weight, w + k), stream16(weight, v + k)
            sums, others = step(sums, others, x, gain, near + here, far + here, column + here, wide, w0, v0)
            k += i64(_CHUNK)
        keep_sums(partial, slot, sums)
        keep_sums(partial, slot + i32(1), others)

    return dot


def _forms(build: Callable[[Any, Any], Callable[..., Any]]) -> dict[tuple[str, str], Callable[..., Any]]:
    """By the types of activations and weights; anything else runs in the common form."""
    return {
        ("uint16", "uint16"): build(mma_bfloat16, plain_operand),
        ("float16", "float16"): build(mma_float16, plain_operand),
        ("float32", "uint16"): build(mma_bfloat16, _normed_operand(pair_bfloat16)),
        ("float32", "float16"): build(mma_float16, _normed_operand(pair_float16)),
    }


SINGLE = _forms(_single)
DOUBLE = _forms(_double)
