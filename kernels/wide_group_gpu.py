"""Hopper's forms of the wide products (kernels/wide_tile.py): chunks of 64 columns through a ring in shared memory.

A slot of the ring holds a line of 128 bytes for each weight row of the tile and for each of 64 rows of activations; eight threads
copy a line, 16 bytes each. Piece p of line r lies at p ^ (r & 7): the order in which warp groups (kernels/lang_group.py) read a
line, and in which no copies meet in a bank. Two groups of four warps multiply all rows of activations with half of the tile each.
The ring is full of weights before the launch before has ended; then come the activations. From there on the products of a chunk are
under way while those of the chunk before end, and a slot is filled anew once both groups have left it: two turns later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_group import ATOM, GROUP_TOKENS, group_products, group_sums, let_groups_see_copies, put_group_sums
from kernels.lang_mma import commit_copies, copy16, copy16_ahead, floats_of, read16, ring_address
from kernels.lang_warp import lane
from kernels.lang_wide import LINE, barrier_of, wait_all_but, zeros_of

_HEIGHT = 192
_WIDTH = _HEIGHT // 2
"""Weight rows of a group."""

_THREADS = 256
_LINES = _THREADS // 8
"""Lines that all threads copy at once."""

_STAGES = 6
_SLOT = (_HEIGHT + GROUP_TOKENS) * LINE
PITCH = _HEIGHT + 8
"""Floats from a token's sums to the next one's."""

RING_BYTES = ATOM + _STAGES * _SLOT

_barrier, _wait, _no_sums = barrier_of(_THREADS), wait_all_but(_STAGES - 3), zeros_of(_WIDTH // 2)
_sums_but_last, _sums, _put_sums = group_sums(_WIDTH, 1), group_sums(_WIDTH, 0), put_group_sums(_WIDTH, PITCH)


@device_function
def ring_begin(ring):
    """Shared address of the first line."""
    return u32((ring_address(ring) + u32(ATOM - 1)) & u32(0xFFFFFC00))


@device_function
def place_in_slot():
    """Where in a slot this thread's copy of the first lines goes; the next lines are 4096 bytes further on."""
    line, piece = i32(cuda.threadIdx.x) >> i32(3), i32(cuda.threadIdx.x) & i32(7)
    return u32(line * i32(LINE) + ((piece ^ (line & i32(7))) << i32(4)))


@device_function
def column_of(chunk):
    return (chunk << i32(6)) + ((i32(cuda.threadIdx.x) & i32(7)) << i32(3))


@device_function
def bytes_of(row, rows, column, depth):
    """16, or 0 for zeros where rows or columns have ended."""
    return u32(16) if row < rows and column < depth else u32(0)


@device_function
def copy_half(address, weight, first, chunk):
    """The lines of half of the tile."""
    rows, depth, row = i32(weight.shape[0]), i32(weight.shape[1]), first + (i32(cuda.threadIdx.x) >> i32(3))
    column = column_of(chunk)
    for i in range(_WIDTH // _LINES):
        at = i64(row + i32(i * _LINES)) * i64(depth) + i64(column)
        copy16_ahead(u32(address + u32(i * _LINES * LINE)), weight, at, bytes_of(row + i32(i * _LINES), rows, column, depth))


@device_function
def copy_weights(address, weight, first, second, chunk):
    copy_half(address, weight, first, chunk)
    copy_half(u32(address + u32(_WIDTH * LINE)), weight, second, chunk)


@device_function
def copy_tokens(address, x, token, chunk):
    """What rows that do not exist yield is never read."""
    depth, column, row = i32(x.shape[1]), column_of(chunk), token + (i32(cuda.threadIdx.x) >> i32(3))
    for i in range(GROUP_TOKENS // _LINES):
        if row + i32(i * _LINES) < i32(x.shape[0]):
            at = i64(row + i32(i * _LINES)) * i64(depth) + i64(column)
            copy16(u32(address + u32((_HEIGHT + i * _LINES) * LINE)), x, at, bytes_of(i32(0), i32(1), column, depth))


@device_function
def next_slot(slot):
    return u32(slot + u32(_SLOT)) if slot < u32((_STAGES - 1) * _SLOT) else u32(0)


def begin(ring, weight, first, second, part, parts):
    if i32(cuda.threadIdx.x) < i32(_THREADS):
        at, chunk = u32(ring_begin(ring) + place_in_slot()), part
        for stage in range(_STAGES):
            if chunk << i32(6) < i32(weight.shape[1]):
                copy_weights(u32(at + u32(stage * _SLOT)), weight, first, second, chunk)
            chunk += parts


def _multiply(kind: str) -> Callable[..., Any]:
    products = group_products(kind, _WIDTH)

    def multiply(ring, x, token, weight, first, second, part, parts):
        if i32(cuda.threadIdx.x) >= i32(_THREADS):
            return
        start, chunks = ring_begin(ring), (i32(weight.shape[1]) + i32(63)) >> i32(6)
        to, ahead = u32(start + place_in_slot()), part
        for stage in range(_STAGES):
            if ahead < chunks:
                copy_tokens(u32(to + u32(stage * _SLOT)), x, token, ahead)
            commit_copies()
            ahead += parts
        warp, own = i32(cuda.threadIdx.x) >> i32(5), lane()
        group = warp >> i32(2)
        near = u32(start + u32(group * i32(_WIDTH * LINE)))
        far = u32(start + u32(_HEIGHT * LINE))
        totals, chunk, turn, behind = _no_sums(), part, u32(0), u32((_STAGES - 2) * _SLOT)
        while chunk < chunks:
            _wait()
            let_groups_see_copies()
            _barrier()
            totals = products(totals, u32(far + turn), u32(near + turn))
            ahead = chunk + i32(_STAGES - 2) * parts
            if chunk >= parts + parts and ahead < chunks:  # into the slot that both groups had left at the barrier
                copy_weights(u32(to + behind), weight, first, second, ahead)
                copy_tokens(u32(to + behind), x, token, ahead)
            commit_copies()
            totals = _sums_but_last(totals)
            chunk += parts
            turn, behind = next_slot(turn), next_slot(behind)
        totals = _sums(totals)
        _barrier()  # the ring has been read: it takes the sums
        row = ((warp & i32(3)) << i32(4)) + (own >> i32(2))
        column = group * i32(_WIDTH) + (((own & i32(3)) << i32(1)) ^ ((row & i32(1)) << i32(2)))
        _put_sums(u32(start + u32((row * i32(PITCH) + column) << i32(2))), totals)

    return multiply


@device_function
def sums_at(ring, t, place):
    """Shared address of a token's first four sums of eight; the others' is that address ^ 16."""
    return u32((ring_begin(ring) + u32((t * i32(PITCH) + place) << i32(2))) ^ u32((t & i32(1)) << i32(4)))


def sums(ring, x, weight, token, row, t, place, part, parts):
    at = sums_at(ring, t, place)
    a, b = floats_of(read16(at)), floats_of(read16(u32(at ^ u32(16))))
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


BEGIN = {"uint16": begin, "float16": begin}
MULTIPLY = {("uint16", "uint16"): _multiply("bf16"), ("float16", "float16"): _multiply("f16")}
SUMS = dict.fromkeys(MULTIPLY, sums)
