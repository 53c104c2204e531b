"""The GPU's forms of kernels/flow.py: rows of weights in long runs through a ring of each warp into the tensor cores.

A stage holds half of a warp's columns of the eight rows of both slabs. A lane asks for the run of a row; a barrier counts bytes.
Lane 4 g + q reads columns 8 q .. 8 q + 7 of both halves of a line of row g; which columns the hardware takes for its k = 0..15
does not matter as long as both operands agree (kernels/tile_gpu.py). Between an even row and the odd one behind it lie 64 bytes,
or the lanes of a read would meet in its banks. A lane whose weight row does not exist takes the last that does; its sums are
never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_bulk import barrier_begin, barrier_expect, barrier_wait, barriers_begun, copy_run, evict_first
from kernels.lang_mma import load16, mma_bfloat16, mma_float16, read16, ring_address
from kernels.lang_warp import lane, warp_barrier

WARPS = 8
"""Warps of a block that multiply at most."""

STAGES = 3
"""Stages of a warp's ring."""

_STAGES_OF_TILE = 2
_LINES = 4  # of a stage: 256 columns
_ROW_BYTES = 128 * _LINES
_GAP = 64
_SLAB_BYTES = 8 * _ROW_BYTES + 4 * _GAP
_STAGE_BYTES = 2 * _SLAB_BYTES
_BARRIERS = (WARPS * STAGES * 8 + 127) // 128 * 128
_WARP_BYTES = STAGES * _STAGE_BYTES

RING_BYTES = 16 + _BARRIERS + WARPS * _WARP_BYTES
"""Dynamic shared memory of a block."""


@device_function
def no_sums():
    """Four sums of nothing."""
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@device_function
def add_sums(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@device_function
def barrier_of(ring, warp, slot):
    return u32(u32(ring_address(ring)) + u32(warp * i32(8 * STAGES)) + (u32(slot) << u32(3)))


@device_function
def stage_of(ring, warp, slot):
    return u32(u32(ring_address(ring)) + u32(_BARRIERS) + u32(warp * i32(_WARP_BYTES)) + u32(slot) * u32(_STAGE_BYTES))


@device_function
def row_place(row):
    """Where a row of a slab begins in its stage."""
    return u32(row * i32(_ROW_BYTES) + ((row + i32(1)) >> i32(1)) * i32(_GAP))


@device_function
def slot_of(turn):
    return turn if turn < u32(STAGES) else u32(turn - u32(STAGES))


@device_function
def ask(ring, weight, row, second, place, line, lines, warp, slot):
    """Begin to fill a slot with stage `place` of the tile at `row`: its first or its second columns, of both slabs."""
    depth = i32(weight.shape[1])
    here = max(min(lines - place * i32(_LINES), i32(_LINES)), i32(0))
    size, barrier = u32(here << i32(7)), barrier_of(ring, warp, slot)
    if lane() == i32(0):
        barrier_expect(barrier, u32(size * u32(16)))
    if here > i32(0) and lane() < i32(16):
        slab, own = lane() >> i32(3), lane() & i32(7)
        index = min(row + slab * second + own, i32(weight.shape[0]) - i32(1))
        column = (line + place * i32(_LINES)) << i32(6)
        address = u32(stage_of(ring, warp, slot) + u32(slab * i32(_SLAB_BYTES)) + row_place(own))
        copy_run(address, weight, i64(index) * i64(depth) + i64(column), size, barrier, evict_first())


@device_function
def turned(turn, by):
    """`by` turns on, of two rounds through the ring."""
    after = u32(turn + u32(by))
    return after if after < u32(2 * STAGES) else u32(after - u32(2 * STAGES))


def begin(ring, weight, row, second, step, limit, line, lines, warp, turn):
    warp_barrier()
    for stage in range(STAGES):
        ahead = row + (i32(stage) >> i32(1)) * step
        if ahead < limit:
            place, slot = i32(stage) & i32(1), slot_of(turned(turn, stage))
            ask(ring, weight, ahead, second, place, line, lines, warp, slot)


def open_ring(ring, warp):
    if lane() == i32(0):
        for slot in range(STAGES):
            barrier_begin(barrier_of(ring, warp, u32(slot)), u32(1))
        barriers_begun()
    warp_barrier()


@device_function
def operand_of(x, start, line, last):
    """Both halves of a line."""
    column = line << i32(6)
    return load16(x, start + i64(min(column, last))), load16(x, start + i64(min(column + i32(32), last)))


def operand(x, token, line):
    depth, group, quad = i32(x.shape[1]), lane() >> i32(2), lane() & i32(3)
    row = min(token + group, i32(x.shape[0]) - i32(1))
    start, last = i64(row) * i64(depth) + i64(quad * i32(8)), depth - i32(32)
    return (
        operand_of(x, start, line, last),
        operand_of(x, start, line + i32(1), last),
        operand_of(x, start, line + i32(2), last),
        operand_of(x, start, line + i32(3), last),
        operand_of(x, start, line + i32(4), last),
        operand_of(x, start, line + i32(5), last),
        operand_of(x, start, line + i32(6), last),
        operand_of(x, start, line + i32(7), last),
    )


def _line(mma: Any, which: int) -> Callable[..., Any]:
    """Multiply line `which` of the warp's eight."""
    own, at = which, which % _LINES * 128

    @device_function
    def line(sums, place, held, lines):
        a, b, c, d = sums
        if lines > i32(own):
            x0, x1 = held[own]
            w, u = read16(u32(place + u32(at))), read16(u32(place + u32(at + 64)))
            v, e = read16(u32(place + u32(at + _SLAB_BYTES))), read16(u32(place + u32(at + 64 + _SLAB_BYTES)))
            a = mma(a, w[0], v[0], w[1], v[1], x0[0], x0[1])
            b = mma(b, w[2], v[2], w[3], v[3], x0[2], x0[3])
            c = mma(c, u[0], e[0], u[1], e[1], x1[0], x1[1])
            d = mma(d, u[2], e[2], u[3], e[3], x1[2], x1[3])
        return a, b, c, d

    return line


def _tile(mma: Any) -> Callable[..., Any]:
    line0, line1, line2, line3, line4, line5, line6, line7 = (_line(mma, which) for which in range(8))

    def tile(ring, partial, to, held, x, token, weight, row, second, step, limit, line, lines, warp, turn):
        group, quad = lane() >> i32(2), lane() & i32(3)
        own = u32(row_place(group) + u32(quad << i32(4)))
        sums = no_sums(), no_sums(), no_sums(), no_sums()
        for stage in range(_STAGES_OF_TILE):
            slot, place = slot_of(turn), i32(stage)
            barrier_wait(barrier_of(ring, warp, slot), u32(1) if turn >= u32(STAGES) else u32(0))
            at = u32(stage_of(ring, warp, slot) + own)
            if place == i32(0):
                sums = line3(line2(line1(line0(sums, at, held, lines), at, held, lines), at, held, lines), at, held, lines)
            else:
                sums = line7(line6(line5(line4(sums, at, held, lines), at, held, lines), at, held, lines), at, held, lines)
            warp_barrier()
            behind = place + i32(STAGES)
            ahead = row + (behind >> i32(1)) * step
            if ahead < limit:
                ask(ring, weight, ahead, second, behind & i32(1), line, lines, warp, slot)
            turn = turned(turn, 1)
        total = add_sums(add_sums(sums[0], sums[1]), add_sums(sums[2], sums[3]))
        cell = to + quad * i32(16) + group
        partial[cell] = total[0]
        partial[cell + i32(8)] = total[1]
        partial[cell + i32(64)] = total[2]
        partial[cell + i32(72)] = total[3]
        return turn

    return tile


BEGIN = {"uint16": begin, "float16": begin}
OPERAND = {"uint16": operand, "float16": operand}
TILE_OF = {("uint16", "uint16"): _tile(mma_bfloat16), ("float16", "float16"): _tile(mma_float16)}
