"""The GPU's forms of kernels/slab.py: slabs of weight rows as they lie in memory, through a ring into the tensor cores.

The copy engine takes a slab as a run of memory, a part of it for each warp, or as two runs; a barrier counts its bytes. Lane
4 g + q reads columns 8 q .. 8 q + 7 of both halves of a line of row g; which columns the hardware takes for its k = 0..15 does not
matter as long as both operands agree (kernels/tile_gpu.py). Rows lie a multiple of 128 bytes apart: so lanes of odd rows read the
second half first, or the lanes of a read would meet in its banks. Of a weight row that does not exist the sums are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.flow_gpu import add_sums, no_sums
from kernels.lang import device_function, i32, i64, u32
from kernels.lang_bulk import barrier_begin, barrier_expect, barrier_wait, barriers_begun, copy_run, evict_first
from kernels.lang_mma import mma_bfloat16, mma_float16, read16, ring_address
from kernels.lang_warp import lane

MOST_STAGES = 8
"""Slabs in a ring at most."""

_GROUPS = 8  # warps of a block, at most a group each
_BARRIERS = 8 * _GROUPS * MOST_STAGES
_DATA = 3 * 65536  # three slabs of 4096 columns

RING_BYTES = 16 + _BARRIERS + _DATA
"""Dynamic shared memory of a block."""


@device_function
def barrier_of(ring, group, slot):
    return u32(u32(ring_address(ring)) + u32((group * i32(MOST_STAGES) + slot) * i32(8)))


@device_function
def slab_of(ring, depth, group, stages, slot):
    return u32(u32(ring_address(ring)) + u32(_BARRIERS) + u32((group * stages + slot) * depth * i32(16)))


def stages_of(depth, groups):
    return max(min(i32(u32(_DATA) // u32(groups * depth * i32(16))), i32(MOST_STAGES)), i32(1))


def open_ring(ring, group, part, stages):
    if part == i32(0) and lane() == i32(0):
        slot = i32(0)
        while slot < stages:
            barrier_begin(barrier_of(ring, group, slot), u32(1))
            slot += i32(1)
        barriers_begun()


@device_function
def row_of(part, parts):
    """First of the eight rows of a slab that a part asks for: they are one run of memory."""
    return i32(u32(part * i32(8) + parts - i32(1)) // u32(parts))


def ask(ring, weight, row, part, parts, group, stages, slot):
    depth, rows = i32(weight.shape[1]), min(i32(weight.shape[0]) - row, i32(8))
    size, barrier = u32(depth << i32(1)), barrier_of(ring, group, slot)
    begin, end = row_of(part, parts), min(row_of(part + i32(1), parts), rows)
    if lane() == i32(0):
        if part == i32(0):
            barrier_expect(barrier, u32(size * u32(rows)))
        if begin < end:
            address = u32(slab_of(ring, depth, group, stages, slot) + u32(begin) * size)
            copy_run(address, weight, i64(row + begin) * i64(depth), u32(u32(end - begin) * size), barrier, evict_first())


def ask_pair(ring, weight, row, second, part, group, stages, slot):
    if part == i32(0) and lane() == i32(0):
        depth, outputs, other = i32(weight.shape[1]), i32(weight.shape[0]), i32(row + second)
        size, barrier, address = u32(depth << i32(1)), barrier_of(ring, group, slot), slab_of(ring, depth, group, stages, slot)
        upper = u32(size * u32(min(i32(outputs - row), i32(4))))
        lower = u32(size * u32(max(min(i32(outputs - other), i32(4)), i32(0))))
        barrier_expect(barrier, u32(upper + lower))
        copy_run(address, weight, i64(row) * i64(depth), upper, barrier, evict_first())
        if lower > u32(0):
            copy_run(u32(address + u32(size << u32(2))), weight, i64(other) * i64(depth), lower, barrier, evict_first())


@device_function
def place_of(row, quad):
    """Where in a line a lane reads first."""
    return u32(((row & i32(1)) << i32(6)) + (quad << i32(4)))


@device_function
def of_two(second, a, b):
    return (
        b[0] if second else a[0],
        b[1] if second else a[1],
        b[2] if second else a[2],
        b[3] if second else a[3],
    )


def _line(mma: Any, which: int) -> Callable[..., Any]:
    """Multiply line `which` of the warp's eight."""
    own, at = which, which * 128

    @device_function
    def line(sums, place, other, odd, held, lines):
        a, b, c, d = sums
        if lines > i32(own):
            x0, x1 = held[own]
            p, q = read16(u32(place + u32(at))), read16(u32(other + u32(at)))
            w, u = of_two(odd, p, q), of_two(odd, q, p)
            zero = u32(0)
            a = mma(a, w[0], zero, w[1], zero, x0[0], x0[1])
            b = mma(b, w[2], zero, w[3], zero, x0[2], x0[3])
            c = mma(c, u[0], zero, u[1], zero, x1[0], x1[1])
            d = mma(d, u[2], zero, u[3], zero, x1[2], x1[3])
        return a, b, c, d

    return line


def _products(mma: Any) -> Callable[..., Any]:
    line0, line1, line2, line3, line4, line5, line6, line7 = (_line(mma, which) for which in range(8))

    def products(ring, partial, to, held, x, token, weight, row, second, line, lines, group, stages, slot, parity):
        depth, member, quad = i32(weight.shape[1]), lane() >> i32(2), lane() & i32(3)
        odd, place = member & i32(1) == i32(1), place_of(member, quad)
        own = u32(slab_of(ring, depth, group, stages, slot) + u32((member * depth + line * i32(64)) << i32(1)))
        at, other = u32(own + place), u32(own + (place ^ u32(64)))
        sums = no_sums(), no_sums(), no_sums(), no_sums()
        barrier_wait(barrier_of(ring, group, slot), parity)
        sums = line1(line0(sums, at, other, odd, held, lines), at, other, odd, held, lines)
        sums = line3(line2(sums, at, other, odd, held, lines), at, other, odd, held, lines)
        sums = line5(line4(sums, at, other, odd, held, lines), at, other, odd, held, lines)
        sums = line7(line6(sums, at, other, odd, held, lines), at, other, odd, held, lines)
        total = add_sums(add_sums(sums[0], sums[1]), add_sums(sums[2], sums[3]))
        cell = to + quad * i32(16) + member
        partial[cell] = total[0]
        partial[cell + i32(8)] = total[1]

    return products


ASK = {"uint16": ask, "float16": ask}
ASK_PAIR = {"uint16": ask_pair, "float16": ask_pair}
PRODUCTS = {("uint16", "uint16"): _products(mma_bfloat16), ("float16", "float16"): _products(mma_float16)}
