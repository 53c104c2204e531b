"""The GPU's forms of the tile products (kernels/tile.py): lines of memory through a ring into the operands of the tensor cores.

A chunk of a slab is 8 rows of 128 bytes: eight lanes copy a row, 16 bytes each. Lane 4 g + q then reads columns 8 q .. 8 q + 7 of
both halves of row g, of each slab and of the activations: four products. Which columns the hardware takes for its k = 0..15 does
not matter as long as both operands agree. The halves of odd rows are swapped in the ring, or the lanes of a read would meet in its
banks. A lane whose weight row does not exist takes the last that does; its sums are never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_bulk import evict_first
from kernels.lang_mma import (
    commit_copies,
    copy16_ahead,
    copy16_once,
    floats_of,
    load16,
    mma_bfloat16,
    mma_float16,
    read16,
    ring_address,
    wait_copies,
    wait_first_copies,
    wait_second_copies,
)
from kernels.lang_vector import ask_for
from kernels.lang_warp import lane, quad_sum, warp_barrier

_ROWS = 8
_TOKENS = 8
_CHUNK = 64
_SLAB_BYTES = 1024


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
def copy_place():
    """Where in a slab this lane's copy of the upper four rows goes; that of the lower four is 512 bytes behind."""
    row, piece = i32(lane() >> i32(3)), i32(lane() & i32(7))
    return u32(row * i32(128) + ((piece ^ ((row & i32(1)) << i32(2))) << i32(4)))


@device_function
def row_offset(array, row):
    """Where a row of a matrix begins, or its last row."""
    return i64(min(i32(row), i32(i32(array.shape[0]) - i32(1)))) * i64(i32(array.shape[1]))


@device_function
def copy_slab(address, weight, upper, lower, at, size, once):
    if once > i32(0):
        copy16_once(address, weight, upper + at, size, evict_first())
        copy16_once(u32(address + u32(512)), weight, lower + at, size, evict_first())
    else:
        copy16_ahead(address, weight, upper + at, size)
        copy16_ahead(u32(address + u32(512)), weight, lower + at, size)


@device_function
def copy_rows(address, x, token, at, size):
    """A chunk of up to eight activation rows; what a row that does not exist yields is never read."""
    row = i32(token + (lane() >> i32(3)))
    if row < i32(x.shape[0]):
        copy16_ahead(address, x, i64(row) * i64(i32(x.shape[1])) + at, size)
    if i32(row + i32(4)) < i32(x.shape[0]):
        copy16_ahead(u32(address + u32(512)), x, i64(i32(row + i32(4))) * i64(i32(x.shape[1])) + at, size)


@device_function
def bytes_at(column, depth):
    """16, or 0 for zeros where the row has ended."""
    return u32(16) if column < depth else u32(0)


def _begin(slabs: int, stages: int) -> Callable[..., Any]:
    @device_function
    def begin(ring, weight, row, other, part, parts, warp, once):
        depth, place = i32(weight.shape[1]), i32(lane() >> i32(3))
        upper, lower = row_offset(weight, i32(row + place)), row_offset(weight, i32(row + place + i32(4)))
        upper2, lower2 = row_offset(weight, i32(other + place)), row_offset(weight, i32(other + place + i32(4)))
        at = u32(ring_address(ring) + u32(warp * i32(stages * (slabs + 1) * _SLAB_BYTES)) + copy_place())
        chunk = i32(part * i32(_CHUNK))
        for _stage in range(stages):
            if chunk < depth:
                column = i32(chunk + ((lane() & i32(7)) << i32(3)))
                size, here = bytes_at(column, depth), i64(min(column, i32(depth - i32(8))))
                copy_slab(at, weight, upper, lower, here, size, once)
                if slabs > 1:
                    copy_slab(u32(at + u32(_SLAB_BYTES)), weight, upper2, lower2, here, size, once)
            at = u32(at + u32((slabs + 1) * _SLAB_BYTES))
            chunk = i32(chunk + parts * i32(_CHUNK))
        if chunk < depth and lane() < i32(8):  # what is asked for behind the first chunks comes from L2 then
            ask_for(weight, row_offset(weight, row + lane()) + i64(chunk))
            if slabs > 1:
                ask_for(weight, row_offset(weight, other + lane()) + i64(chunk))

    return begin


def _rows(slabs: int, stages: int) -> Callable[..., Any]:
    @device_function
    def rows(ring, x, token, part, parts, warp):
        depth, chunk = i32(x.shape[1]), i32(part * i32(_CHUNK))
        at = u32(ring_address(ring) + u32(warp * i32(stages * (slabs + 1) * _SLAB_BYTES)) + copy_place())
        for _stage in range(stages):
            if chunk < depth:
                column = i32(chunk + ((lane() & i32(7)) << i32(3)))
                here = i64(min(column, i32(depth - i32(8))))
                copy_rows(u32(at + u32(slabs * _SLAB_BYTES)), x, token, here, bytes_at(column, depth))
            commit_copies()
            at = u32(at + u32((slabs + 1) * _SLAB_BYTES))
            chunk = i32(chunk + parts * i32(_CHUNK))

    return rows


def _finish(mma: Any, slabs: int, stages: int, wait: Any) -> Callable[..., Any]:
    stage_bytes, ring_bytes = (slabs + 1) * _SLAB_BYTES, stages * (slabs + 1) * _SLAB_BYTES

    @device_function
    def finish(ring, partial, x, token, weight, row, other, part, parts, warp, once):
        depth, place = i32(weight.shape[1]), i32(lane() >> i32(3))
        upper, lower = row_offset(weight, i32(row + place)), row_offset(weight, i32(row + place + i32(4)))
        upper2, lower2 = row_offset(weight, i32(other + place)), row_offset(weight, i32(other + place + i32(4)))
        ring_begin = u32(ring_address(ring) + u32(warp * i32(ring_bytes)))
        step, piece = i32(parts * i32(_CHUNK)), i32((lane() & i32(7)) << i32(3))
        chunk, to = i32(part * i32(_CHUNK) + i32(stages) * step), u32(ring_begin + copy_place())
        group, quad = i32(lane() >> i32(2)), i32(lane() & i32(3))
        near = u32(ring_begin + u32(group * i32(128) + ((quad ^ ((group & i32(1)) << i32(2))) << i32(4))))
        far = u32(ring_begin + u32(group * i32(128) + (((quad + i32(4)) ^ ((group & i32(1)) << i32(2))) << i32(4))))
        a, b, c, d = no_sums(), no_sums(), no_sums(), no_sums()
        v, e = no_words(), no_words()
        k, turn = i32(part * i32(_CHUNK)), u32(0)
        while k < depth:
            wait()
            warp_barrier()
            x0, x1 = read16(u32(near + turn + u32(slabs * _SLAB_BYTES))), read16(u32(far + turn + u32(slabs * _SLAB_BYTES)))
            w, u = read16(u32(near + turn)), read16(u32(far + turn))
            if slabs > 1:
                v, e = read16(u32(near + turn + u32(_SLAB_BYTES))), read16(u32(far + turn + u32(_SLAB_BYTES)))
            a = mma(a, w[0], v[0], w[1], v[1], x0[0], x0[1])
            b = mma(b, w[2], v[2], w[3], v[3], x0[2], x0[3])
            c = mma(c, u[0], e[0], u[1], e[1], x1[0], x1[1])
            d = mma(d, u[2], e[2], u[3], e[3], x1[2], x1[3])
            warp_barrier()
            if chunk < depth:
                column = i32(chunk + piece)
                size, here = bytes_at(column, depth), i64(min(column, i32(depth - i32(8))))
                copy_slab(u32(to + turn), weight, upper, lower, here, size, once)
                if slabs > 1:
                    copy_slab(u32(to + turn + u32(_SLAB_BYTES)), weight, upper2, lower2, here, size, once)
                copy_rows(u32(to + turn + u32(slabs * _SLAB_BYTES)), x, token, here, size)
            commit_copies()
            chunk = i32(chunk + step)
            k = i32(k + step)
            turn = u32(turn + u32(stage_bytes))
            if turn == u32(ring_bytes):
                turn = u32(0)
        wait_copies()
        a = add_sums(add_sums(a, b), add_sums(c, d))
        at = i32((warp * i32(slabs * _TOKENS) + quad * i32(2)) * i32(_ROWS) + group)
        partial[u32(at)] = a[0]
        partial[u32(at + i32(_ROWS))] = a[1]
        if slabs > 1:
            partial[u32(at + i32(_ROWS * _TOKENS))] = a[2]
            partial[u32(at + i32(_ROWS * _TOKENS + _ROWS))] = a[3]

    return finish


_begin_one, _begin_two = _begin(1, 2), _begin(2, 3)
_rows_one, _rows_two = _rows(1, 2), _rows(2, 3)


def begin(ring, weight, row, other, part, parts, warp, slabs, once):
    if slabs > i32(1):
        _begin_two(ring, weight, row, other, part, parts, warp, once)
    else:
        _begin_one(ring, weight, row, row, part, parts, warp, once)


def rows(ring, x, token, part, parts, warp, slabs):
    if slabs > i32(1):
        _rows_two(ring, x, token, part, parts, warp)
    else:
        _rows_one(ring, x, token, part, parts, warp)


def _finish_of(mma: Any) -> Callable[..., Any]:
    one, two = _finish(mma, 1, 2, wait_first_copies), _finish(mma, 2, 3, wait_second_copies)

    def finish(ring, partial, x, token, weight, row, other, part, parts, warp, slabs, once):
        if slabs > i32(1):
            two(ring, partial, x, token, weight, row, other, part, parts, warp, once)
        else:
            one(ring, partial, x, token, weight, row, row, part, parts, warp, once)

    return finish


BEGIN = {"uint16": begin, "float16": begin}
ROWS = {"uint16": rows, "float16": rows}
FINISH = {("uint16", "uint16"): _finish_of(mma_bfloat16), ("float16", "float16"): _finish_of(mma_float16)}


@device_function
def four_of_row(squares, start, i, columns):
    """Sum of the four elements of a row from column i on; 0 behind its end."""
    values = floats_of(load16(squares, start + i64(min(i, i32(columns - i32(4))))))
    total = (values[0] + values[1]) + (values[2] + values[3])
    return total if i < columns else f32(0.0)


def scales_of_rows(scale, squares, token, width, eps):
    """Four lanes a row, so that eight rows are under way at once, and of each row eight loads of a lane."""
    group, quad, columns = i32(lane() >> i32(2)), i32(lane() & i32(3)), i32(squares.shape[1])
    row = min(i32(token + group), i32(i32(squares.shape[0]) - i32(1)))
    total, start = f32(0.0), i64(row) * i64(columns)
    if columns & i32(3) == i32(0):
        i = i32(quad * i32(4))
        while i < columns:
            a, b = four_of_row(squares, start, i, columns), four_of_row(squares, start, i32(i + i32(16)), columns)
            c, d = four_of_row(squares, start, i32(i + i32(32)), columns), four_of_row(squares, start, i32(i + i32(48)), columns)
            e, f = four_of_row(squares, start, i32(i + i32(64)), columns), four_of_row(squares, start, i32(i + i32(80)), columns)
            g, h = four_of_row(squares, start, i32(i + i32(96)), columns), four_of_row(squares, start, i32(i + i32(112)), columns)
            total += ((a + b) + (c + d)) + ((e + f) + (g + h))
            i = i32(i + i32(128))
    else:
        i = quad
        while i < columns:
            total += squares[row, i]
            i += i32(4)
    total = quad_sum(total)
    if quad == i32(0):
        scale[group] = f32(1.0) / f32(math.sqrt(total / f32(width) + eps))
