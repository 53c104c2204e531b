"""The GPU's forms of the wide products (kernels/wide_tile.py): chunks of 64 columns through a ring in shared memory.

A slot of the ring holds a line of 128 bytes for each weight row of the tile and for each of 64 rows of activations; eight threads
copy a line, 16 bytes each. Piece p of line r lies at p ^ (r & 7), so that neither the copies nor `ldmatrix`, which takes one piece
of eight lines at a time, meet in a bank. Eight warps, four along the weight rows by two along the tokens, hand them to the tensor
cores: a warp's weights are used for 32 tokens, and its activations for a quarter of the tile. The ring is full of weights before
the launch before has ended; then come the activations, and from there on a slot is filled anew once all warps have left it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import cuda, device_function, f32, i32, i64, u32
from kernels.lang_matrix import read4
from kernels.lang_mma import commit_copies, copy16, copy16_ahead, floats_of, load16, read16, ring_address
from kernels.lang_warp import lane
from kernels.lang_wide import (
    LINE,
    PAIR_TOKENS,
    WARP_TOKENS,
    barrier_of,
    chunk_products,
    load_shared_by_all,
    put_sums,
    wait_all_but,
    zeros_of,
)

_TOKENS = 64
_THREADS = 256
_LINES = _THREADS // 8
"""Lines that all threads copy at once."""

_STAGES = {192: 3, 128: 4}
"""Slots of the ring by height of the tile: 96 KiB each."""

_barrier = barrier_of(_THREADS)


@device_function
def ring_begin(ring):
    """Shared address of the first line: a multiple of its length, or the pieces of a line would not change places."""
    return u32((ring_address(ring) + u32(LINE - 1)) & u32(0xFFFFFF80))


def pitch(height: int) -> int:
    """Floats from a token's sums to the next one's: lanes that store together meet in no bank."""
    return height + 4


@device_function
def place_in_slot():
    """Where in a slot this thread's copy of the first lines goes; the next lines are 4096 bytes further on."""
    line, piece = i32(cuda.threadIdx.x) >> i32(3), i32(cuda.threadIdx.x) & i32(7)
    return u32(line * i32(LINE) + ((piece ^ (line & i32(7))) << i32(4)))


@device_function
def column_of(chunk):
    return chunk * i32(64) + ((i32(cuda.threadIdx.x) & i32(7)) << i32(3))


@device_function
def bytes_of(row, rows, column, depth):
    """16, or 0 for zeros where rows or columns have ended."""
    return u32(16) if row < rows and column < depth else u32(0)


def _copy_weights(height: int) -> Callable[..., Any]:
    half = height // 2 // _LINES

    @device_function
    def copy_weights(address, weight, first, second, chunk):
        rows, depth, line = i32(weight.shape[0]), i32(weight.shape[1]), i32(cuda.threadIdx.x) >> i32(3)
        column = column_of(chunk)
        for i in range(half):
            row = first + line + i32(i * _LINES)
            copy16_ahead(address, weight, i64(row) * i64(depth) + i64(column), bytes_of(row, rows, column, depth))
            address = u32(address + u32(_LINES * LINE))
        for i in range(half):
            row = second + line + i32(i * _LINES)
            copy16_ahead(address, weight, i64(row) * i64(depth) + i64(column), bytes_of(row, rows, column, depth))
            address = u32(address + u32(_LINES * LINE))

    return copy_weights


@device_function
def copy_tokens(address, x, token, chunk):
    """What rows that do not exist yield is never read."""
    depth, column, row = i32(x.shape[1]), column_of(chunk), token + (i32(cuda.threadIdx.x) >> i32(3))
    for i in range(_TOKENS // _LINES):
        if row + i32(i * _LINES) < i32(x.shape[0]):
            at = i64(row + i32(i * _LINES)) * i64(depth) + i64(column)
            copy16(u32(address + u32(i * _LINES * LINE)), x, at, bytes_of(i32(0), i32(1), column, depth))


def _begin(height: int) -> Callable[..., Any]:
    copy_weights, stages, slot = _copy_weights(height), _STAGES[height], (height + _TOKENS) * LINE

    @device_function
    def begin(ring, weight, first, second, part, parts):
        if i32(cuda.threadIdx.x) < i32(_THREADS):
            chunk, at = part, u32(ring_begin(ring) + place_in_slot())
            for _stage in range(stages):
                if chunk * i32(64) < i32(weight.shape[1]):
                    copy_weights(at, weight, first, second, chunk)
                at = u32(at + u32(slot))
                chunk += parts

    return begin


def _multiply(kind: str, height: int) -> Callable[..., Any]:
    copy_weights, stages, slot = _copy_weights(height), _STAGES[height], (height + _TOKENS) * LINE
    tiles, ring_bytes, tokens_at, row_bytes = height // 64, stages * slot, height * LINE, pitch(height) * 4
    one, two, wait = chunk_products(kind, tiles, 1), chunk_products(kind, tiles, 2), wait_all_but(stages - 2)
    put_one, put_two = put_sums(tiles, 1, pitch(height)), put_sums(tiles, 2, pitch(height))
    no_sums = zeros_of(tiles * 16)

    @device_function
    def multiply(ring, x, token, weight, first, second, part, parts):
        if i32(cuda.threadIdx.x) >= i32(_THREADS):
            return
        depth, start = i32(weight.shape[1]), ring_begin(ring)
        to, chunk = u32(start + place_in_slot()), part
        for _stage in range(stages):
            if chunk * i32(64) < depth:
                copy_tokens(u32(to + u32(tokens_at)), x, token, chunk)
            commit_copies()
            to = u32(to + u32(slot))
            chunk += parts
        warp, own = i32(cuda.threadIdx.x) >> i32(5), lane()
        upper, right = warp >> i32(1), warp & i32(1)
        line, piece = upper * i32(tiles * 16) + (own & i32(15)), (own >> i32(4)) ^ (own & i32(7))
        near = u32(start + u32(line * i32(LINE) + (piece << i32(4))))
        line = right * i32(WARP_TOKENS) + (own & i32(7)) + ((own >> i32(4)) << i32(3))
        piece = ((own >> i32(3)) & i32(1)) ^ (own & i32(7))
        far = u32(start + u32(i32(tokens_at) + line * i32(LINE) + (piece << i32(4))))
        totals = no_sums()
        wide = i32(x.shape[0]) - token > i32(PAIR_TOKENS)
        k, turn, behind = part, u32(0), u32(ring_bytes - slot)
        to = u32(start + place_in_slot())
        while k * i32(64) < depth:
            wait()
            _barrier()
            if k >= parts and chunk * i32(64) < depth:  # into the slot that all warps have just left
                copy_weights(u32(to + behind), weight, first, second, chunk)
                copy_tokens(u32(to + behind + u32(tokens_at)), x, token, chunk)
            if k >= parts:
                chunk += parts
            commit_copies()
            weights, rows = u32(near + turn), u32(far + turn)
            totals = two(totals, weights, rows) if wide else one(totals, weights, rows)
            k += parts
            behind = turn
            turn = u32(turn + u32(slot))
            if turn == u32(ring_bytes):
                turn = u32(0)
        _barrier()  # the ring has been read: it takes the sums
        row, column = right * i32(WARP_TOKENS) + ((own & i32(3)) << i32(1)), upper * i32(tiles * 16) + (own >> i32(2))
        at = u32(start + u32(row * i32(row_bytes) + (column << i32(2))))
        if wide:
            put_two(at, totals)
        else:
            put_one(at, totals)

    return multiply


def _begin_of() -> Callable[..., Any]:
    low, high = _begin(128), _begin(192)

    def begin(ring, weight, first, second, height, part, parts):
        if height > i32(128):
            high(ring, weight, first, second, part, parts)
        else:
            low(ring, weight, first, second, part, parts)

    return begin


def _multiply_of(kind: str) -> Callable[..., Any]:
    low, high = _multiply(kind, 128), _multiply(kind, 192)

    def multiply(ring, x, token, weight, first, second, height, part, parts):
        if height > i32(128):
            high(ring, x, token, weight, first, second, part, parts)
        else:
            low(ring, x, token, weight, first, second, part, parts)

    return multiply


@device_function
def four_added(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@device_function
def own_four(ring, t, place, height):
    return floats_of(read16(u32(ring_begin(ring) + u32((t * (height + i32(4)) + place) << i32(2)))))


@device_function
def four_of_part(own, partial, block, at, part, which):
    """Four sums of part `which`, of which this one are `own`."""
    return own if which == part else load_shared_by_all(partial, i64(block) * i64(partial.shape[1]) + i64(at))


@device_function
def four_sums(ring, partial, t, place, height, tile, part, parts):
    """Of all parts, in order; all of them are under way at once."""
    own, at, first, last = own_four(ring, t, place, height), t * height + place, tile * parts, parts - i32(1)
    a = four_of_part(own, partial, first, at, part, i32(0))
    b = four_of_part(own, partial, first + min(i32(1), last), at, part, min(i32(1), last))
    c = four_of_part(own, partial, first + min(i32(2), last), at, part, min(i32(2), last))
    d = four_of_part(own, partial, first + last, at, part, last)
    if parts > i32(1):
        a = four_added(a, b)
    if parts > i32(2):
        a = four_added(four_added(a, c), d)
    return a


def sums(ring, partial, x, weight, token, row, t, place, height, tile, part, parts):
    a = four_sums(ring, partial, t, place, height, tile, part, parts)
    b = four_sums(ring, partial, t, place + i32(4), height, tile, part, parts)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


def own_sum(ring, x, weight, t, place, height):
    return read4(u32(ring_begin(ring) + u32((t * (height + i32(4)) + place) << i32(2))))


def shared_by(x, weight, parts):
    return parts


@device_function
def four_summed(squares, start, i, columns):
    """Sum of four elements from column i of a row on; 0 behind its end."""
    values = floats_of(load16(squares, start + i64(min(i, columns - i32(4)))))
    total = (values[0] + values[1]) + (values[2] + values[3])
    return total if i < columns else f32(0.0)


@device_function
def sixteen_summed(squares, start, i, columns):
    """Of four loads of a lane, 512 columns of a warp."""
    a, b = four_summed(squares, start, i, columns), four_summed(squares, start, i + i32(128), columns)
    c, d = four_summed(squares, start, i + i32(256), columns), four_summed(squares, start, i + i32(384), columns)
    return (a + b) + (c + d)


def four_totals(squares, row, last):
    """Sixteen loads of a lane are under way at once: the multiprocessor's others keep memory busy, and each of them waits long."""
    columns, a, b, c, d = i32(squares.shape[1]), f32(0.0), f32(0.0), f32(0.0), f32(0.0)
    second, third, fourth = min(row + i32(1), last), min(row + i32(2), last), min(row + i32(3), last)
    if columns & i32(3) == i32(0):
        i = lane() * i32(4)
        while i < columns:
            a += sixteen_summed(squares, i64(row) * i64(columns), i, columns)
            b += sixteen_summed(squares, i64(second) * i64(columns), i, columns)
            c += sixteen_summed(squares, i64(third) * i64(columns), i, columns)
            d += sixteen_summed(squares, i64(fourth) * i64(columns), i, columns)
            i += i32(512)
    else:
        i = lane()
        while i < columns:
            a += squares[row, i]
            b += squares[second, i]
            c += squares[third, i]
            d += squares[fourth, i]
            i += i32(32)
    return a, b, c, d


BEGIN = dict.fromkeys(("uint16", "float16"), _begin_of())
MULTIPLY = {("uint16", "uint16"): _multiply_of("bf16"), ("float16", "float16"): _multiply_of("f16")}
SUMS = dict.fromkeys(MULTIPLY, sums)
OWN = dict.fromkeys(MULTIPLY, own_sum)
PARTS = dict.fromkeys(MULTIPLY, shared_by)
