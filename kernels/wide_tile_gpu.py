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

from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_mma import commit_copies, copy16, copy16_ahead, ring_address
from kernels.lang_overlap import cluster_address, cluster_rank, cluster_size, read_cluster_four
from kernels.lang_warp import lane
from kernels.wide_fragments import LINE, PAIR_TOKENS, WARP_TOKENS, barrier_of, chunk_products, put_sums, wait_all_but, zeros_of

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
    def begin(ring, weight, first, second):
        if i32(cuda.threadIdx.x) < i32(_THREADS):
            chunk, at = cluster_rank(), u32(ring_begin(ring) + place_in_slot())
            for _stage in range(stages):
                if chunk * i32(64) < i32(weight.shape[1]):
                    copy_weights(at, weight, first, second, chunk)
                at = u32(at + u32(slot))
                chunk += cluster_size()

    return begin


def _multiply(kind: str, height: int) -> Callable[..., Any]:
    copy_weights, stages, slot = _copy_weights(height), _STAGES[height], (height + _TOKENS) * LINE
    tiles, ring_bytes, tokens_at, row_bytes = height // 64, stages * slot, height * LINE, pitch(height) * 4
    one, two, wait = chunk_products(kind, tiles, 1), chunk_products(kind, tiles, 2), wait_all_but(stages - 2)
    put_one, put_two = put_sums(tiles, 1, pitch(height)), put_sums(tiles, 2, pitch(height))
    no_sums = zeros_of(tiles * 16)

    @device_function
    def multiply(ring, x, token, weight, first, second):
        if i32(cuda.threadIdx.x) >= i32(_THREADS):
            return
        depth, ranks, start = i32(weight.shape[1]), cluster_size(), ring_begin(ring)
        to, chunk = u32(start + place_in_slot()), cluster_rank()
        for _stage in range(stages):
            if chunk * i32(64) < depth:
                copy_tokens(u32(to + u32(tokens_at)), x, token, chunk)
            commit_copies()
            to = u32(to + u32(slot))
            chunk += ranks
        warp, own = i32(cuda.threadIdx.x) >> i32(5), lane()
        upper, right = warp >> i32(1), warp & i32(1)
        line, piece = upper * i32(tiles * 16) + (own & i32(15)), (own >> i32(4)) ^ (own & i32(7))
        near = u32(start + u32(line * i32(LINE) + (piece << i32(4))))
        line = right * i32(WARP_TOKENS) + (own & i32(7)) + ((own >> i32(4)) << i32(3))
        piece = ((own >> i32(3)) & i32(1)) ^ (own & i32(7))
        far = u32(start + u32(i32(tokens_at) + line * i32(LINE) + (piece << i32(4))))
        totals = no_sums()
        wide = i32(x.shape[0]) - token > i32(PAIR_TOKENS)
        k, turn, behind = cluster_rank(), u32(0), u32(ring_bytes - slot)
        to = u32(start + place_in_slot())
        while k * i32(64) < depth:
            wait()
            _barrier()
            if k >= ranks and chunk * i32(64) < depth:  # into the slot that all warps have just left
                copy_weights(u32(to + behind), weight, first, second, chunk)
                copy_tokens(u32(to + behind + u32(tokens_at)), x, token, chunk)
            if k >= ranks:
                chunk += ranks
            commit_copies()
            weights, rows = u32(near + turn), u32(far + turn)
            totals = two(totals, weights, rows) if wide else one(totals, weights, rows)
            k += ranks
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

    def begin(ring, weight, first, second, height):
        if height > i32(128):
            high(ring, weight, first, second)
        else:
            low(ring, weight, first, second)

    return begin


def _multiply_of(kind: str) -> Callable[..., Any]:
    low, high = _multiply(kind, 128), _multiply(kind, 192)

    def multiply(ring, x, token, weight, first, second, height):
        if height > i32(128):
            high(ring, x, token, weight, first, second)
        else:
            low(ring, x, token, weight, first, second)

    return multiply


@device_function
def four_added(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


def sums(ring, x, weight, token, row, t, place, height):
    """Those of all blocks of the cluster, in order."""
    at, ranks = u32(ring_begin(ring) + u32((t * (height + i32(4)) + place) << i32(2))), cluster_size()
    own = cluster_address(at, i32(0))
    a, b = read_cluster_four(own), read_cluster_four(u32(own + u32(16)))
    if ranks == i32(4):  # all under way at once
        second, third, fourth = cluster_address(at, i32(1)), cluster_address(at, i32(2)), cluster_address(at, i32(3))
        c, d = read_cluster_four(second), read_cluster_four(u32(second + u32(16)))
        e, f = read_cluster_four(third), read_cluster_four(u32(third + u32(16)))
        g, h = read_cluster_four(fourth), read_cluster_four(u32(fourth + u32(16)))
        a, b = four_added(four_added(four_added(a, c), e), g), four_added(four_added(four_added(b, d), f), h)
    else:
        rank = i32(1)
        while rank < ranks:
            other = cluster_address(at, rank)
            a, b = four_added(a, read_cluster_four(other)), four_added(b, read_cluster_four(u32(other + u32(16))))
            rank += i32(1)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


BEGIN = dict.fromkeys(("uint16", "float16"), _begin_of())
MULTIPLY = {("uint16", "uint16"): _multiply_of("bf16"), ("float16", "float16"): _multiply_of("f16")}
SUMS = dict.fromkeys(MULTIPLY, sums)
