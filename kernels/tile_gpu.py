"""The GPU's forms of the tile products (kernels/tile.py): 16-byte loads straight into the operands of the tensor cores.

Lane 4 g + q of a warp holds columns 8 q .. 8 q + 7 of each chunk of 32, of weight row g and of activation rows g and g + 8: one
copy each, two products. Which columns the hardware takes for its k = 0..15 does not matter as long as both operands agree.
A lane whose row does not exist takes the last that does; its sums are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import cuda, device_function, f32, i32, i64, u32
from kernels.lang_mma import (
    commit_copies,
    copy16,
    floats_of,
    load16,
    mma_bfloat16,
    mma_float16,
    pair_bfloat16,
    pair_float16,
    read16,
    ring_address,
    wait_copies,
    wait_older_copies,
)
from kernels.lang_warp import lane

_ROWS = 8
_CHUNK = 32
_GROUP = 2
"""Chunks that are fetched together."""

_GROUPS = 4
"""Groups that are under way or in use (lang_mma.wait_older_copies counts on it)."""

_AHEAD = _GROUP * _CHUNK
_GROUP_BYTES = _GROUP * 32 * 16
"""A group of one tile: 16 bytes for each lane and chunk."""


@device_function
def no_words():
    """Sixteen bytes of zero."""
    return u32(0), u32(0), u32(0), u32(0)


@device_function
def no_sums():
    """Four sums of nothing."""
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@device_function
def add_sums(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@device_function
def ring_slots(ring, chunks):
    """This lane's first slot: a warp has _GROUPS groups of `chunks` chunks, a chunk 16 bytes for each lane. Slots are a lane's own,
    so that nobody waits for anybody."""
    warp = u32(cuda.threadIdx.x) >> u32(5)
    return ring_address(ring) + u32(warp * u32(_GROUPS * chunks * 512)) + u32(u32(lane()) * u32(16))


@device_function
def fetch_group(address, weight, offset, k, last):
    """Begin to copy a group's chunks from column k on; zeros for columns that the range does not have."""
    for i in range(_GROUP):
        at = i32(k + i32(i * _CHUNK))
        size = u32(0)
        if at <= last:
            size = u32(16)
        copy16(u32(address + u32(i * 512)), weight, offset + i64(min(at, last)), size)


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
        first, second = floats_of(load16(gain, i64(column))), floats_of(load16(gain, i64(column) + i64(4)))
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

    def dot(ring, partial, slot, x, gain, token, rows, weight, row, begin, end):
        place, column = lane() >> i32(2), i32((lane() & i32(3)) * i32(8))
        w, wide = weight_offset(weight, row), rows > i32(8)
        near, far = token_offset(x, token, rows, place), token_offset(x, token, rows, place + i32(8))
        here = ring_slots(ring, _GROUP)
        k, stop, last = i32(begin), i32(end), i32(i32(end) - i32(8) - column)
        for group in range(_GROUPS):
            fetch_group(u32(here + u32(group * _GROUP_BYTES)), weight, w, i32(k + i32(group * _AHEAD)), last)
            commit_copies()
        sums, others = no_sums(), no_sums()
        turn = u32(0)
        while k < stop:
            wait_older_copies()
            at = u32(here + turn)
            w0, w1 = read16(at), read16(u32(at + u32(512)))
            c0, c1 = min(k, last), min(i32(k + i32(_CHUNK)), last)
            sums = step(sums, x, gain, near + i64(c0), far + i64(c0), column + c0, wide, w0)
            others = step(others, x, gain, near + i64(c1), far + i64(c1), column + c1, wide, w1)
            fetch_group(at, weight, w, i32(k + i32(_GROUPS * _AHEAD)), last)
            commit_copies()
            turn = u32(u32(turn + u32(_GROUP_BYTES)) & u32(_GROUPS * _GROUP_BYTES - 1))
            k = i32(k + i32(_AHEAD))
        wait_copies()
        keep_sums(partial, slot, add_sums(sums, others))

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

    def dot(ring, partial, slot, x, gain, token, rows, weight, row, other, begin, end):
        place, column = lane() >> i32(2), i32((lane() & i32(3)) * i32(8))
        w, v, wide = weight_offset(weight, row), weight_offset(weight, other), rows > i32(8)
        near, far = token_offset(x, token, rows, place), token_offset(x, token, rows, place + i32(8))
        here = ring_slots(ring, 2 * _GROUP)
        k, stop, last = i32(begin), i32(end), i32(i32(end) - i32(8) - column)
        for group in range(_GROUPS):
            fetch_group(u32(here + u32(2 * group * _GROUP_BYTES)), weight, w, i32(k + i32(group * _AHEAD)), last)
            fetch_group(u32(here + u32((2 * group + 1) * _GROUP_BYTES)), weight, v, i32(k + i32(group * _AHEAD)), last)
            commit_copies()
        sums, others = no_sums(), no_sums()
        turn = u32(0)
        while k < stop:
            wait_older_copies()
            at = u32(here + turn)
            to = u32(at + u32(_GROUP_BYTES))
            w0, w1 = read16(at), read16(u32(at + u32(512)))
            v0, v1 = read16(to), read16(u32(to + u32(512)))
            c = min(k, last)
            sums, others = step(sums, others, x, gain, near + i64(c), far + i64(c), column + c, wide, w0, v0)
            c = min(i32(k + i32(_CHUNK)), last)
            sums, others = step(sums, others, x, gain, near + i64(c), far + i64(c), column + c, wide, w1, v1)
            fetch_group(at, weight, w, i32(k + i32(_GROUPS * _AHEAD)), last)
            fetch_group(to, weight, v, i32(k + i32(_GROUPS * _AHEAD)), last)
            commit_copies()
            turn = u32(u32(turn + u32(2 * _GROUP_BYTES)) & u32(2 * _GROUPS * _GROUP_BYTES - 1))
            k = i32(k + i32(_AHEAD))
        wait_copies()
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
