"""The GPU's forms of kernels/held.py: weights from memory into the registers that the tensor cores read them from.

Lane 4 g + q holds columns 8 q .. 8 q + 7 of both halves of each line of rows g and g + 8; which columns the hardware takes for its
k = 0..15 does not matter as long as both operands agree (kernels/tile_gpu.py). The activations lie in shared memory in the order in
which the lanes read them. A lane whose weight row does not exist takes the last that does; its sums are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.flow_gpu import add_sums, no_sums
from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_element import early16, write16
from kernels.lang_mma import floats_of, load16, mma_bfloat16, mma_float16, read16, ring_address
from kernels.lang_warp import lane

_LINES = 9
_COLUMNS = 64 * _LINES
_PIECE = 512  # bytes of shared memory: a half line of eight rows


@device_function
def place_of(array, row):
    """First element of a row that this lane reads."""
    return i64(min(row, i32(array.shape[0]) - i32(1))) * i64(_COLUMNS) + i64((lane() & i32(3)) << i32(3))


def _ask(which: int) -> Callable[..., Any]:
    """Ask for line `which` of both slabs."""
    at = 64 * which

    @device_function
    def ask(weight, near, far, wanted):
        return (
            early16(weight, near + i64(at), wanted),
            early16(weight, near + i64(at + 32), wanted),
            early16(weight, far + i64(at), wanted),
            early16(weight, far + i64(at + 32), wanted),
        )

    return ask


_ASKS = [_ask(which) for which in range(_LINES)]
ask0, ask1, ask2, ask3, ask4, ask5, ask6, ask7, ask8 = _ASKS


@device_function
def is_there(weight, row):
    return u32(1) if row < i32(weight.shape[0]) else u32(0)


def hold(weight, row):
    own, wanted = row + (lane() >> i32(2)), is_there(weight, row)
    near, far = place_of(weight, own), place_of(weight, own + i32(8))
    return (
        ask0(weight, near, far, wanted),
        ask1(weight, near, far, wanted),
        ask2(weight, near, far, wanted),
        ask3(weight, near, far, wanted),
        ask4(weight, near, far, wanted),
        ask5(weight, near, far, wanted),
        ask6(weight, near, far, wanted),
        ask7(weight, near, far, wanted),
        ask8(weight, near, far, wanted),
    )


def lay_out(operand, x, token):
    item, begin = i32(cuda.threadIdx.x), u32(ring_address(operand))
    while item < i32(_COLUMNS):  # so many times sixteen bytes are in eight rows
        row, column = token + ((item & i32(31)) >> i32(2)), (item & i32(-32)) + ((item & i32(3)) << i32(3))
        start = i64(min(row, i32(x.shape[0]) - i32(1))) * i64(_COLUMNS)
        words = floats_of(load16(x, start + i64(column)))
        write16(u32(begin + u32(item << i32(4))), words[0], words[1], words[2], words[3])
        item += i32(cuda.blockDim.x)


def _line(mma: Any, which: int) -> Callable[..., Any]:
    """Multiply line `which`, and ask for that of the next tile."""
    own, at, ask = which, 2 * _PIECE * which, _ASKS[which]

    @device_function
    def line(sums, place, held, weight, near, far, wanted):
        a, b, c, d = sums
        x0, x1 = read16(u32(place + u32(at))), read16(u32(place + u32(at + _PIECE)))
        w, u, v, e = held[own]
        a = mma(a, w[0], v[0], w[1], v[1], x0[0], x0[1])
        b = mma(b, w[2], v[2], w[3], v[3], x0[2], x0[3])
        c = mma(c, u[0], e[0], u[1], e[1], x1[0], x1[1])
        d = mma(d, u[2], e[2], u[3], e[3], x1[2], x1[3])
        return (a, b, c, d), ask(weight, near, far, wanted)

    return line


def _products(mma: Any) -> Callable[..., Any]:
    line0, line1, line2, line3, line4, line5, line6, line7, line8 = (_line(mma, which) for which in range(_LINES))

    def products(operand, partial, to, held, x, token, weight, row, after):
        member, quad, wanted = lane() >> i32(2), lane() & i32(3), is_there(weight, after)
        near, far = place_of(weight, after + member), place_of(weight, after + member + i32(8))
        at = u32(u32(ring_address(operand)) + u32(lane() << i32(4)))
        sums = no_sums(), no_sums(), no_sums(), no_sums()
        sums, next0 = line0(sums, at, held, weight, near, far, wanted)
        sums, next1 = line1(sums, at, held, weight, near, far, wanted)
        sums, next2 = line2(sums, at, held, weight, near, far, wanted)
        sums, next3 = line3(sums, at, held, weight, near, far, wanted)
        sums, next4 = line4(sums, at, held, weight, near, far, wanted)
        sums, next5 = line5(sums, at, held, weight, near, far, wanted)
        sums, next6 = line6(sums, at, held, weight, near, far, wanted)
        sums, next7 = line7(sums, at, held, weight, near, far, wanted)
        sums, next8 = line8(sums, at, held, weight, near, far, wanted)
        total = add_sums(add_sums(sums[0], sums[1]), add_sums(sums[2], sums[3]))
        cell = to + quad * i32(32) + member
        partial[cell] = total[0]
        partial[cell + i32(16)] = total[1]
        partial[cell + i32(8)] = total[2]
        partial[cell + i32(24)] = total[3]
        return next0, next1, next2, next3, next4, next5, next6, next7, next8

    return products


HOLD = {"uint16": hold, "float16": hold}
LAY_OUT = {"uint16": lay_out, "float16": lay_out}
PRODUCTS = {("uint16", "uint16"): _products(mma_bfloat16), ("float16", "float16"): _products(mma_float16)}
