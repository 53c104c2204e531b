"""The K best tokens of each logits row, in order."""

from __future__ import annotations

from kernels.argmax import float_order
from kernels.lang import MAX_THREADS, NEG_INF, cuda, f32, i32, kernel, u64

MAX_TILES = 1024
"""Stretches of columns whose maximum is kept in shared memory."""

_TILE = 512
"""Columns of a stretch; more where the vocabulary has more than MAX_TILES of them."""

_NOTHING = i32(-2147483648)
"""Order of a NaN, and of a stretch that has nothing left."""


@kernel(writes=("ids", "values"))
def top_candidates(ids, values, logits, vocab_size, num_rows):
    """ids[j, :], values[j, :] = the K largest of logits[j, :vocab_size] and their columns, largest first, for the live rows.

    The lower column goes first among equals. NaN is never a candidate; where fewer than K numbers are left, id 0 with -inf fills
    up, so that every id is valid and no filler wins.

    Args:
        ids: int32 [J, K].
        values: float32 [J, K].
        logits: float32 [J, V'], V' >= vocab_size.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: a block a row. The maximum of each stretch of columns is found once; a pick then looks at the maxima, and at one stretch
    for its first such column and for what is left behind it. As picks come in order, what is left is whatever is ordered behind the
    last pick, without a mask. Block `j` owns row j; barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_dflash.top_candidates.
    """
    tile_best = cuda.shared.array(MAX_TILES, i32)
    thread_best = cuda.shared.array(MAX_THREADS, i32)
    thread_tile = cuda.shared.array(MAX_THREADS, i32)
    found = cuda.shared.array(2, i32)
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    tile = max(i32(_TILE), i32((vocab_size + i32(MAX_TILES - 1)) // i32(MAX_TILES)))
    num_tiles = i32((vocab_size + tile - i32(1)) // tile)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        for t in range(tid, num_tiles, threads):
            best = _NOTHING
            for i in range(t * tile, min(i32((t + 1) * tile), vocab_size)):
                best = max(best, float_order(logits[row, u64(i)]))
            tile_best[t] = best
        cuda.syncthreads()
        last_order = i32(2147483647)
        last_column = i32(-1)
        for pick in range(ids.shape[1]):
            best = _NOTHING
            best_tile = i32(0)
            for t in range(tid, num_tiles, threads):
                if tile_best[t] > best:
                    best = tile_best[t]
                    best_tile = i32(t)
            thread_best[tid] = best
            thread_tile[tid] = best_tile
            if tid == i32(0):
                found[0] = vocab_size
                found[1] = _NOTHING
            cuda.syncthreads()
            width = threads
            while width > i32(1):
                half = i32((width + i32(1)) // i32(2))
                if tid < width - half:
                    other = i32(tid + half)
                    larger = thread_best[other] > thread_best[tid]
                    if larger or (thread_best[other] == thread_best[tid] and thread_tile[other] < thread_tile[tid]):
                        thread_best[tid] = thread_best[other]
                        thread_tile[tid] = thread_tile[other]
                cuda.syncthreads()
                width = half
            order = i32(thread_best[0])
            chosen = i32(thread_tile[0])
            if order == _NOTHING:
                if tid == i32(0):
                    ids[row, pick] = i32(0)
                    values[row, pick] = f32(NEG_INF)
            else:
                start = i32(chosen * tile)
                stop = min(i32(start + tile), vocab_size)
                # Equals of the last pick stand behind it in its own stretch, or in a later one.
                behind = last_column if order == last_order else i32(-1)
                column = i32(vocab_size)
                for i in range(start + tid, stop, threads):
                    if column == vocab_size and i > behind and float_order(logits[row, i]) == order:
                        column = i32(i)
                if column < vocab_size:
                    cuda.atomic.min(found, 0, column)
                cuda.syncthreads()
                last_order = order
                last_column = i32(found[0])
                rest = _NOTHING
                for i in range(start + tid, stop, threads):
                    here = float_order(logits[row, i])
                    if (here < order or (here == order and i > last_column)) and here > rest:
                        rest = here
                cuda.atomic.max(found, 1, rest)
                cuda.syncthreads()
                if tid == i32(0):
                    ids[row, pick] = last_column
                    values[row, pick] = logits[row, last_column]
                    tile_best[chosen] = found[1]
            cuda.syncthreads()
