"""The GPU's forms of the tile products (kernels/tile.py): lines of memory through a ring into the operands of the tensor cores.

A chunk of one slab is 8 rows of 128 bytes: eight lanes copy a row, 16 bytes each. Lane 4 g + q then reads columns 8 q .. 8 q + 7
of both halves of row g, of the slab and of the activations: four products. Which columns the hardware takes for its k = 0..15 does
not matter as long as both operands agree. The halves of odd rows are swapped in the ring, or the lanes of a read would meet in its
banks. Chunks of two slabs are 64 bytes a row, and a lane copies what it reads itself. A lane whose weight row does not exist
takes the last that does; its sums are never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_mma import (
    bring_near,
    commit_copies,
    copy16_ahead,
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
from kernels.lang_warp import lane, quad_sum, warp_barrier

_ROWS = 8
_TOKENS = 8
_RUN_SHIFT = 9
_RUN = 1 << _RUN_SHIFT
"""Columns of each weight row that are asked for in one go, a few chunks before their turn: memory likes long runs."""

_WIDE_STAGES, _NARROW_STAGES = 2, 3


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
    row, piece = lane() >> i32(3), lane() & i32(7)
    return u32(row * i32(128) + ((piece ^ ((row & i32(1)) << i32(2))) << i32(4)))


@device_function
def row_offset(array, row):
    """Where a row of a matrix begins, or its last row."""
    return i64(min(row, i32(array.shape[0]) - i32(1))) * i64(array.shape[1])


@device_function
def copy_slab(address, weight, upper, lower, at, size):
    copy16_ahead(address, weight, upper + at, size)
    copy16_ahead(u32(address + u32(512)), weight, lower + at, size)


@device_function
def copy_rows(address, x, token, at, size):
    """A chunk of up to eight activation rows; what a row that does not exist yields is never read."""
    row = token + (lane() >> i32(3))
    if row < i32(x.shape[0]):
        copy16_ahead(address, x, i64(row) * i64(x.shape[1]) + at, size)
    if row + i32(4) < i32(x.shape[0]):
        copy16_ahead(u32(address + u32(512)), x, i64(row + i32(4)) * i64(x.shape[1]) + at, size)


@device_function
def bytes_at(column, depth):
    """16, or 0 for zeros where the row has ended."""
    return u32(16) if column < depth else u32(0)


@device_function
def bring_run(weight, row, other, run, slabs):
    """Bring run number `run` of every row of the slabs into L2, a lane a row."""
    depth, start = i32(weight.shape[1]), run * i32(_RUN)
    if start < depth and lane() < slabs * i32(_ROWS):
        own = row + lane() if lane() < i32(_ROWS) else other + lane() - i32(_ROWS)
        bring_near(weight, row_offset(weight, own) + i64(start), u32(min(depth - start, i32(_RUN)) << i32(1)))


@device_function
def bring_first_runs(weight, row, other, part, slabs, runs):
    if part == i32(0):
        for run in range(runs):
            bring_run(weight, row, other, i32(run), slabs)


@device_function
def wide_slots(ring, warp):
    """This warp's ring of one slab."""
    return u32(ring_address(ring) + u32(warp * i32(_WIDE_STAGES * 2048)))


@device_function
def _begin_one(ring, weight, row, part, parts, warp, runs):
    depth, place = i32(weight.shape[1]), lane() >> i32(3)
    upper, lower = row_offset(weight, row + place), row_offset(weight, row + place + i32(4))
    at, chunk = u32(wide_slots(ring, warp) + copy_place()), part * i32(64)
    for _stage in range(_WIDE_STAGES):
        if chunk < depth:
            column = chunk + ((lane() & i32(7)) << i32(3))
            copy_slab(at, weight, upper, lower, i64(min(column, depth - i32(8))), bytes_at(column, depth))
        at = u32(at + u32(2048))
        chunk += parts * i32(64)
    bring_first_runs(weight, row, row, part, i32(1), runs)


@device_function
def _rows_one(ring, x, token, part, parts, warp):
    depth, chunk, at = i32(x.shape[1]), part * i32(64), u32(wide_slots(ring, warp) + copy_place())
    for _stage in range(_WIDE_STAGES):
        if chunk < depth:
            column = chunk + ((lane() & i32(7)) << i32(3))
            copy_rows(u32(at + u32(1024)), x, token, i64(min(column, depth - i32(8))), bytes_at(column, depth))
        commit_copies()
        at = u32(at + u32(2048))
        chunk += parts * i32(64)


def _finish_one(mma: Any) -> Callable[..., Any]:
    @device_function
    def finish(ring, partial, x, token, weight, row, part, parts, warp, runs):
        depth, place = i32(weight.shape[1]), lane() >> i32(3)
        upper, lower = row_offset(weight, row + place), row_offset(weight, row + place + i32(4))
        begin, step, piece = wide_slots(ring, warp), parts * i32(64), (lane() & i32(7)) << i32(3)
        group, quad = lane() >> i32(2), lane() & i32(3)
        near = u32(begin + u32(group * i32(128) + ((quad ^ ((group & i32(1)) << i32(2))) << i32(4))))
        far = u32(begin + u32(group * i32(128) + (((quad + i32(4)) ^ ((group & i32(1)) << i32(2))) << i32(4))))
        a, b, c, d = no_sums(), no_sums(), no_sums(), no_sums()
        k, none, turn, run = part * i32(64), u32(0), u32(0), i32(0)
        chunk, to = k + i32(_WIDE_STAGES) * step, u32(begin + copy_place())
        while k < depth:
            if part == i32(0) and runs > i32(0) and k >> i32(_RUN_SHIFT) >= run:
                bring_run(weight, row, row, run + runs, i32(1))
                run += i32(1)
            wait_first_copies()
            warp_barrier()
            x0, x1 = read16(u32(near + turn + u32(1024))), read16(u32(far + turn + u32(1024)))
            w, u = read16(u32(near + turn)), read16(u32(far + turn))
            a = mma(a, w[0], none, w[1], none, x0[0], x0[1])
            b = mma(b, w[2], none, w[3], none, x0[2], x0[3])
            c = mma(c, u[0], none, u[1], none, x1[0], x1[1])
            d = mma(d, u[2], none, u[3], none, x1[2], x1[3])
            warp_barrier()
            if chunk < depth:
                column = chunk + piece
                size, here = bytes_at(column, depth), i64(min(column, depth - i32(8)))
                copy_slab(u32(to + turn), weight, upper, lower, here, size)
                copy_rows(u32(to + turn + u32(1024)), x, token, here, size)
            commit_copies()
            chunk += step
            k += step
            turn = u32(turn ^ u32(2048))
        wait_copies()
        a = add_sums(add_sums(a, b), add_sums(c, d))
        at = (warp * i32(_TOKENS) + quad * i32(2)) * i32(_ROWS) + group
        partial[at] = a[0]
        partial[at + i32(_ROWS)] = a[1]

    return finish


@device_function
def fetch_narrow(at, weight, first, second, chunk, depth):
    """A chunk of 32 columns of both slabs, 16 bytes of a row of each for this lane."""
    column = chunk + ((lane() & i32(3)) << i32(3))
    size, here = bytes_at(column, depth), i64(min(column, depth - i32(8)))
    copy16_ahead(at, weight, first + here, size)
    copy16_ahead(u32(at + u32(512)), weight, second + here, size)


@device_function
def fetch_narrow_row(at, x, token, chunk, depth):
    """The same of the activations; what a row that does not exist yields is never read."""
    row = token + (lane() >> i32(2))
    if row < i32(x.shape[0]):
        column = chunk + ((lane() & i32(3)) << i32(3))
        here = i64(row) * i64(x.shape[1]) + i64(min(column, depth - i32(8)))
        copy16_ahead(u32(at + u32(1024)), x, here, bytes_at(column, depth))


@device_function
def narrow_slots(ring, warp):
    """This lane's first slot in its warp's ring."""
    return u32(ring_address(ring) + u32(warp * i32(_NARROW_STAGES * 1536)) + u32(lane() << i32(4)))


@device_function
def _begin_two(ring, weight, row, other, part, parts, warp, runs):
    depth, place, chunk, at = i32(weight.shape[1]), lane() >> i32(2), part * i32(32), narrow_slots(ring, warp)
    first, second = row_offset(weight, row + place), row_offset(weight, other + place)
    for _stage in range(_NARROW_STAGES):
        if chunk < depth:
            fetch_narrow(at, weight, first, second, chunk, depth)
        at = u32(at + u32(1536))
        chunk += parts * i32(32)
    bring_first_runs(weight, row, other, part, i32(2), runs)


@device_function
def _rows_two(ring, x, token, part, parts, warp):
    depth, chunk, at = i32(x.shape[1]), part * i32(32), narrow_slots(ring, warp)
    for _stage in range(_NARROW_STAGES):
        if chunk < depth:
            fetch_narrow_row(at, x, token, chunk, depth)
        commit_copies()
        at = u32(at + u32(1536))
        chunk += parts * i32(32)


def _finish_two(mma: Any) -> Callable[..., Any]:
    @device_function
    def finish(ring, partial, x, token, weight, row, other, part, parts, warp, runs):
        depth, place, begin = i32(weight.shape[1]), lane() >> i32(2), narrow_slots(ring, warp)
        first, second = row_offset(weight, row + place), row_offset(weight, other + place)
        step = parts * i32(32)
        k = part * i32(32)
        chunk, turn, run = k + i32(_NARROW_STAGES) * step, u32(0), i32(0)
        a, b = no_sums(), no_sums()
        while k < depth:
            if part == i32(0) and runs > i32(0) and k >> i32(_RUN_SHIFT) >= run:
                bring_run(weight, row, other, run + runs, i32(2))
                run += i32(1)
            wait_second_copies()
            at = u32(begin + turn)
            w, v, e = read16(at), read16(u32(at + u32(512))), read16(u32(at + u32(1024)))
            a = mma(a, w[0], v[0], w[1], v[1], e[0], e[1])
            b = mma(b, w[2], v[2], w[3], v[3], e[2], e[3])
            if chunk < depth:
                fetch_narrow(at, weight, first, second, chunk, depth)
                fetch_narrow_row(at, x, token, chunk, depth)
            commit_copies()
            chunk += step
            k += step
            turn = u32(turn + u32(1536))
            if turn == u32(_NARROW_STAGES * 1536):
                turn = u32(0)
        wait_copies()
        a, quad = add_sums(a, b), lane() & i32(3)
        at = (warp * i32(2 * _TOKENS) + quad * i32(2)) * i32(_ROWS) + place
        partial[at] = a[0]
        partial[at + i32(_ROWS)] = a[1]
        partial[at + i32(_ROWS * _TOKENS)] = a[2]
        partial[at + i32(_ROWS * _TOKENS + _ROWS)] = a[3]

    return finish


def begin(ring, weight, row, other, part, parts, warp, slabs, runs):
    if slabs == i32(1):
        _begin_one(ring, weight, row, part, parts, warp, runs)
    else:
        _begin_two(ring, weight, row, other, part, parts, warp, runs)


def rows(ring, x, token, part, parts, warp, slabs):
    if slabs == i32(1):
        _rows_one(ring, x, token, part, parts, warp)
    else:
        _rows_two(ring, x, token, part, parts, warp)


def _finish_of(mma: Any) -> Callable[..., Any]:
    one, two = _finish_one(mma), _finish_two(mma)

    def finish(ring, partial, x, token, weight, row, other, part, parts, warp, slabs, runs):
        if slabs == i32(1):
            one(ring, partial, x, token, weight, row, part, parts, warp, runs)
        else:
            two(ring, partial, x, token, weight, row, other, part, parts, warp, runs)

    return finish


BEGIN = {"uint16": begin, "float16": begin}
ROWS = {"uint16": rows, "float16": rows}
FINISH = {("uint16", "uint16"): _finish_of(mma_bfloat16), ("float16", "float16"): _finish_of(mma_float16)}


@device_function
def four_of_row(squares, start, i, columns):
    """Sum of the four elements of a row from column i on; 0 behind its end."""
    values = floats_of(load16(squares, start + i64(min(i, columns - i32(4)))))
    total = (values[0] + values[1]) + (values[2] + values[3])
    return total if i < columns else f32(0.0)


def scales_of_rows(scale, squares, token, width, eps):
    """Four lanes a row, so that eight rows are under way at once, and of each row eight loads of a lane."""
    group, quad, columns = lane() >> i32(2), lane() & i32(3), i32(squares.shape[1])
    row = min(token + group, i32(squares.shape[0]) - i32(1))
    total, start = f32(0.0), i64(row) * i64(columns)
    if columns & i32(3) == i32(0):
        i = quad * i32(4)
        while i < columns:
            a, b = four_of_row(squares, start, i, columns), four_of_row(squares, start, i + i32(16), columns)
            c, d = four_of_row(squares, start, i + i32(32), columns), four_of_row(squares, start, i + i32(48), columns)
            e, f = four_of_row(squares, start, i + i32(64), columns), four_of_row(squares, start, i + i32(80), columns)
            g, h = four_of_row(squares, start, i + i32(96), columns), four_of_row(squares, start, i + i32(112), columns)
            total += ((a + b) + (c + d)) + ((e + f) + (g + h))
            i += i32(128)
    else:
        i = quad
        while i < columns:
            total += squares[row, i]
            i += i32(4)
    total = quad_sum(total)
    if quad == i32(0):
        scale[group] = f32(1.0) / f32(math.sqrt(total / f32(width) + eps))
