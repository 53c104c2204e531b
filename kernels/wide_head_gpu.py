"""Hopper's form of kernels/wide_head.py: chunks of one tile after the other through the ring of kernels/wide_group_gpu.py, which
goes on at the next tile without a pause.

A thread keeps the sums of two rows in 24 columns of a tile, stores them from its registers, in pairs, so that four lanes fill a
sector, and keeps the best of them; the eight threads of a row meet once, behind a stripe's last tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import NEG_INF, cuda, device_function, i32, i64, u32
from kernels.lang_group import GROUP_TOKENS, group_products, group_sums, let_groups_see_copies
from kernels.lang_head import best_of_sums, store_sums
from kernels.lang_mma import commit_copies
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, quad_max
from kernels.lang_wide import LINE, barrier_of, wait_all_but, zeros_of
from kernels.wide_group_gpu import RING_BYTES as GROUP_RING_BYTES
from kernels.wide_group_gpu import SLOT, copy_tile, copy_tokens, place_in_slot, ring_begin
from kernels.wide_shape import HEIGHT, STAGES, THREADS, WIDTH

RING_BYTES = GROUP_RING_BYTES
_NONE = i32(2147483647)
_LOWEST = i32(-2147483647)

_barrier, _wait, _no_sums = barrier_of(THREADS), wait_all_but(STAGES - 2), zeros_of(WIDTH // 2)
_store_near, _store_far = store_sums(WIDTH, 0), store_sums(WIDTH, 1)
_best_near, _best_far = best_of_sums(WIDTH, 0), best_of_sums(WIDTH, 1)


@device_function
def chunks_of_stripe(weight, first, step, chunks):
    """Of all tiles from row `first` on, `step` rows apart."""
    return i32(i32((i32(weight.shape[0]) - first + step - i32(1)) // step) * chunks)


@device_function
def begin_stripe(to, weight, first, step, chunks):
    """The first chunks of a stripe under way."""
    chunk, row, total = i32(0), i32(first), chunks_of_stripe(weight, first, step, chunks)
    for stage in range(STAGES):
        if i32(stage) < total:
            copy_tile(u32(to + u32(stage * SLOT)), weight, row, chunk)
        chunk = i32(chunk + i32(1))
        if chunk == chunks:
            chunk, row = i32(0), i32(row + step)


@device_function
def best_of_quad(value, column):
    """The largest of four neighbouring lanes, and its lowest column."""
    most = quad_max(value)
    return most, i32(-quad_max(i32(-column) if value == most else _LOWEST))


def _stripes(kind: str) -> Callable[..., Any]:
    products, sums_of = group_products(kind, WIDTH), group_sums(WIDTH, 0)

    @device_function
    def multiply_stripe(logits, x, weight, vocab_size, token, live, first, step, chunks, start, to, values, columns):
        """The tiles from row `first` on, `step` rows apart, with rows token .. token + 63: logits, and the best of each row and
        group to values and columns. The first weights are under way."""
        outputs, pitch = i32(weight.shape[0]), i64(i32(logits.shape[1]))
        total, chunk = chunks_of_stripe(weight, first, step, chunks), i32(0)
        for stage in range(STAGES):
            if i32(stage) < total:
                copy_tokens(u32(to + u32(stage * SLOT)), x, token, chunk)
            commit_copies()
            chunk = i32(chunk + i32(1)) if i32(chunk + i32(1)) < chunks else i32(0)
        warp, own = i32(cuda.threadIdx.x) >> i32(5), lane()
        group = warp >> i32(2)
        near, far = u32(start + u32(group * i32(WIDTH * LINE))), u32(start + u32(i32(HEIGHT * LINE)))
        row = i32(token + ((warp & i32(3)) << i32(4)) + (own >> i32(2)))
        column = i32(first + group * i32(WIDTH) + ((own & i32(3)) << i32(1)))
        totals, turn, behind = _no_sums(), u32(0), u32((STAGES - 1) * SLOT)
        chunk, done, next_chunk, next_first = i32(0), i32(0), i32(STAGES - 1), i32(first)
        while next_chunk >= chunks:
            next_chunk, next_first = i32(next_chunk - chunks), i32(next_first + step)
        near_value, near_column, far_value, far_column = NEG_INF, _NONE, NEG_INF, _NONE
        while done < total:
            _wait()
            let_groups_see_copies()
            _barrier()
            if done > i32(0) and i32(done + i32(STAGES - 1)) < total:  # into the slot that both groups have just left
                copy_tile(u32(to + behind), weight, next_first, next_chunk)
                copy_tokens(u32(to + behind), x, token, next_chunk)
            commit_copies()
            next_chunk = i32(next_chunk + i32(1))
            if next_chunk == chunks:
                next_chunk, next_first = i32(0), i32(next_first + step)
            totals = sums_of(products(totals, u32(far + turn), u32(near + turn)))
            behind = turn
            turn = u32(turn + u32(SLOT))
            if turn == u32(STAGES * SLOT):
                turn = u32(0)
            chunk, done = i32(chunk + i32(1)), i32(done + i32(1))
            if chunk == chunks:
                if row < live:
                    _store_near(logits, i64(row) * pitch + i64(column), totals, column, outputs)
                if i32(row + i32(8)) < live:
                    _store_far(logits, i64(i32(row + i32(8))) * pitch + i64(column), totals, column, outputs)
                near_value, near_column = _best_near(totals, near_value, near_column, column, vocab_size)
                far_value, far_column = _best_far(totals, far_value, far_column, column, vocab_size)
                chunk, column, totals = i32(0), i32(column + step), _no_sums()
        near_value, near_column = best_of_quad(near_value, near_column)
        far_value, far_column = best_of_quad(far_value, far_column)
        if own & i32(3) == i32(0):
            at = i32(group * i32(GROUP_TOKENS) + row - token)
            values[at], columns[at] = near_value, near_column
            values[i32(at + i32(8))], columns[i32(at + i32(8))] = far_value, far_column

    def stripes_form(logits, best_value, best_column, x, weight, vocab_size, num_rows, ring, values, columns):
        stripes = i32(best_value.shape[0])
        chunks, step = i32((i32(weight.shape[1]) + i32(63)) >> i32(6)), i32(stripes * i32(HEIGHT))
        start, stripe = ring_begin(ring), i32(cuda.blockIdx.x)
        to, working = u32(start + place_in_slot()), i32(cuda.threadIdx.x) < i32(THREADS)
        begun = working and stripe < stripes
        if begun:
            begin_stripe(to, weight, i32(stripe * i32(HEIGHT)), step, chunks)
        wait_for_launches()
        let_next_launch_start()
        live = i32(num_rows[0])
        while stripe < stripes:
            token, first = i32(0), i32(stripe * i32(HEIGHT))
            while token < live:
                if working:
                    if not begun:
                        begin_stripe(to, weight, first, step, chunks)
                    begun = False
                    multiply_stripe(logits, x, weight, vocab_size, token, live, first, step, chunks, start, to, values, columns)
                cuda.syncthreads()
                t = i32(cuda.threadIdx.x)
                if t < i32(GROUP_TOKENS) and i32(token + t) < live:
                    value, column = values[t], columns[t]
                    other, place = values[i32(t + i32(GROUP_TOKENS))], columns[i32(t + i32(GROUP_TOKENS))]
                    if other > value or (other == value and place < column):
                        value, column = other, place
                    best_value[stripe, i32(token + t)], best_column[stripe, i32(token + t)] = value, column
                cuda.syncthreads()
                token = i32(token + i32(GROUP_TOKENS))
            stripe = i32(stripe + i32(cuda.gridDim.x))

    return stripes_form


def yes(x, weight):
    return True


STRIPES = {("uint16", "uint16"): _stripes("bf16"), ("float16", "float16"): _stripes("f16")}
