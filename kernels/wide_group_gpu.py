"""Hopper's forms of the wide products (kernels/wide_tile.py): chunks of 64 columns through a ring in shared memory.

A slot of the ring holds a line of 128 bytes for each weight row of the tile and for each of 64 rows of activations; eight threads
copy a line, 16 bytes each. Piece p of line r lies at p ^ (r & 7): the order in which warp groups (kernels/lang_group.py) read a
line, and in which no copies meet in a bank. Two groups of four warps multiply all rows of activations with half of the tile each.
The ring is full of weights before the launch before has ended; then come the activations. From there on the products of a chunk are
under way while those of the chunk before end, and a slot is filled anew once both groups have left it: two turns later. The sums go
to memory from the registers that they are in: four neighbouring lanes have eight neighbouring columns of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.gated import gated
from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_group import ATOM, GROUP_TOKENS, group_products, group_sums, let_groups_see_copies
from kernels.lang_head import store_sums
from kernels.lang_matrix import put4
from kernels.lang_mma import commit_copies, copy16, copy16_ahead, pair_bfloat16, pair_float16, ring_address
from kernels.lang_warp import lane
from kernels.lang_wide import LINE, barrier_of, wait_all_but, zeros_of
from kernels.wide_shape import HEIGHT, STAGES, THREADS, WIDTH

_LINES = THREADS // 8
"""Lines that all threads copy at once."""

SLOT = (HEIGHT + GROUP_TOKENS) * LINE

RING_BYTES = ATOM + STAGES * SLOT

_barrier, _wait, _no_sums = barrier_of(THREADS), wait_all_but(STAGES - 3), zeros_of(WIDTH // 2)
_sums_but_last, _sums = group_sums(WIDTH, 1), group_sums(WIDTH, 0)
_store_near, _store_far = store_sums(WIDTH, 0), store_sums(WIDTH, 1)


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
def next_slot(slot):
    return u32(slot + u32(SLOT)) if slot < u32((STAGES - 1) * SLOT) else u32(0)


@device_function
def column_of(chunk):
    return (chunk << i32(6)) + ((i32(cuda.threadIdx.x) & i32(7)) << i32(3))


@device_function
def bytes_of(row, rows, column, depth):
    """16, or 0 for zeros where rows or columns have ended."""
    return u32(16) if row < rows and column < depth else u32(0)


@device_function
def copy_lines(address, weight, row, step, chunk):
    """The lines of a tile; row: of this thread's first, the next ones are `step` apart."""
    rows, depth, column = i32(weight.shape[0]), i32(weight.shape[1]), column_of(chunk)
    for i in range(HEIGHT // _LINES):
        size = bytes_of(row + i32(i) * step, rows, column, depth)
        at = i64(row + i32(i) * step) * i64(depth) + i64(column)
        copy16_ahead(u32(address + u32(i * _LINES * LINE)), weight, at, size)


@device_function
def copy_tile(address, weight, first, chunk):
    """Weight rows from `first` on, in order."""
    copy_lines(address, weight, first + (i32(cuda.threadIdx.x) >> i32(3)), i32(_LINES), chunk)


@device_function
def copy_pairs(address, weight, first, chunk):
    """Eight rows of gate from `first` on, the eight of up that belong to them, and so on: a thread sums both of a column."""
    thread = i32(cuda.threadIdx.x)
    row = first + ((thread >> i32(7)) << i32(3)) + ((thread >> i32(3)) & i32(7))
    copy_lines(address, weight, row + (i32(weight.shape[0]) >> i32(1)) if thread & i32(64) else row, i32(_LINES // 2), chunk)


@device_function
def copy_tokens(address, x, token, chunk):
    """What rows that do not exist yield is never read."""
    depth, column, row = i32(x.shape[1]), column_of(chunk), token + (i32(cuda.threadIdx.x) >> i32(3))
    for i in range(GROUP_TOKENS // _LINES):
        if row + i32(i * _LINES) < i32(x.shape[0]):
            at = i64(row + i32(i * _LINES)) * i64(depth) + i64(column)
            copy16(u32(address + u32((HEIGHT + i * _LINES) * LINE)), x, at, bytes_of(i32(0), i32(1), column, depth))


def _flow(copy: Callable[..., None]) -> tuple[Callable[..., Any], Callable[[str], Callable[..., Any]]]:
    """What begins a tile whose lines `copy` copies, and by kind of storage what multiplies it: a thread's sums."""

    @device_function
    def begin(ring, weight, first, part, parts):
        at, chunk = u32(ring_begin(ring) + place_in_slot()), part
        for stage in range(STAGES):
            if chunk << i32(6) < i32(weight.shape[1]):
                copy(u32(at + u32(stage * SLOT)), weight, first, chunk)
            chunk += parts

    def multiply_in(kind: str) -> Callable[..., Any]:
        products = group_products(kind, WIDTH)

        @device_function
        def multiply(ring, x, token, weight, first, part, parts):
            start, chunks = ring_begin(ring), (i32(weight.shape[1]) + i32(63)) >> i32(6)
            to, ahead = u32(start + place_in_slot()), part
            for stage in range(STAGES):
                if ahead < chunks:
                    copy_tokens(u32(to + u32(stage * SLOT)), x, token, ahead)
                commit_copies()
                ahead += parts
            near = u32(start + u32((i32(cuda.threadIdx.x) >> i32(7)) * i32(WIDTH * LINE)))
            far = u32(start + u32(HEIGHT * LINE))
            totals, chunk, turn, behind = _no_sums(), part, u32(0), u32((STAGES - 2) * SLOT)
            while chunk < chunks:
                _wait()
                let_groups_see_copies()
                _barrier()
                totals = products(totals, u32(far + turn), u32(near + turn))
                ahead = chunk + i32(STAGES - 2) * parts
                if chunk >= parts + parts and ahead < chunks:  # into the slot that both groups had left at the barrier
                    copy(u32(to + behind), weight, first, ahead)
                    copy_tokens(u32(to + behind), x, token, ahead)
                commit_copies()
                totals = _sums_but_last(totals)
                chunk += parts
                turn, behind = next_slot(turn), next_slot(behind)
            return _sums(totals)

        return multiply

    return begin, multiply_in


_begin_tile, _multiply_tile = _flow(copy_tile)
_begin_pairs, _multiply_pairs = _flow(copy_pairs)


@device_function
def own_row():
    """Of this thread's near sums among a tile's rows of activations; its far ones are eight below."""
    return ((i32(cuda.threadIdx.x) >> i32(5) & i32(3)) << i32(4)) + (lane() >> i32(2))


@device_function
def own_column(width):
    """First column of this thread's sums, where each group has so many."""
    return (i32(cuda.threadIdx.x) >> i32(7)) * i32(width) + ((lane() & i32(3)) << i32(1))


def begin_parts(ring, weight, first, part, parts):
    if i32(cuda.threadIdx.x) < i32(THREADS):
        _begin_tile(ring, weight, first, part, parts)


def _store_parts(kind: str) -> Callable[..., Any]:
    multiply = _multiply_tile(kind)

    def store_parts(ring, out, x, token, live, weight, first, part, parts):
        if i32(cuda.threadIdx.x) >= i32(THREADS):
            return
        totals = multiply(ring, x, token, weight, first, part, parts)
        row, column, outputs = token + own_row(), first + own_column(WIDTH), i32(weight.shape[0])
        at, pitch = i64(part * outputs + column), i64(i32(out.shape[1]))
        if row < live:
            _store_near(out, i64(row) * pitch + at, totals, column, outputs)
        if row + i32(8) < live:
            _store_far(out, i64(row + i32(8)) * pitch + at, totals, column, outputs)

    return store_parts


def begin_gate_up(ring, weight, first):
    if i32(cuda.threadIdx.x) < i32(THREADS):
        _begin_pairs(ring, weight, first, i32(0), i32(1))


def _store_gate_up(kind: str, pair: Callable[..., Any]) -> Callable[..., Any]:
    multiply = _multiply_pairs(kind)

    @device_function
    def put(out, at, stored, first_gate, second_gate, first_up, second_up):
        if stored:
            put4(out, at, pair(gated(first_gate, first_up), gated(second_gate, second_up)))

    def store_gate_up(ring, out, x, token, live, weight, first):
        if i32(cuda.threadIdx.x) >= i32(THREADS):
            return
        s = multiply(ring, x, token, weight, first, i32(0), i32(1))
        row, column, outputs = token + own_row(), first + own_column(WIDTH // 2), i32(out.shape[1])
        at, left = i64(row) * i64(outputs) + i64(column), outputs - column if row < live else i32(0)
        put(out, at, i32(0) < left, s[0], s[1], s[4], s[5])
        put(out, at + i64(8), i32(8) < left, s[8], s[9], s[12], s[13])
        put(out, at + i64(16), i32(16) < left, s[16], s[17], s[20], s[21])
        put(out, at + i64(24), i32(24) < left, s[24], s[25], s[28], s[29])
        put(out, at + i64(32), i32(32) < left, s[32], s[33], s[36], s[37])
        put(out, at + i64(40), i32(40) < left, s[40], s[41], s[44], s[45])
        at, left = at + i64(8) * i64(outputs), outputs - column if row + i32(8) < live else i32(0)
        put(out, at, i32(0) < left, s[2], s[3], s[6], s[7])
        put(out, at + i64(8), i32(8) < left, s[10], s[11], s[14], s[15])
        put(out, at + i64(16), i32(16) < left, s[18], s[19], s[22], s[23])
        put(out, at + i64(24), i32(24) < left, s[26], s[27], s[30], s[31])
        put(out, at + i64(32), i32(32) < left, s[34], s[35], s[38], s[39])
        put(out, at + i64(40), i32(40) < left, s[42], s[43], s[46], s[47])

    return store_gate_up


BEGIN_PARTS = dict.fromkeys(("uint16", "float16"), begin_parts)
BEGIN_GATE_UP = dict.fromkeys(("uint16", "float16"), begin_gate_up)
STORE_PARTS = {("uint16", "uint16"): _store_parts("bf16"), ("float16", "float16"): _store_parts("f16")}
STORE_GATE_UP = {
    ("uint16", "uint16"): _store_gate_up("bf16", pair_bfloat16),
    ("float16", "float16"): _store_gate_up("f16", pair_float16),
}
STORED = dict.fromkeys(STORE_PARTS, lambda x, weight: True)
