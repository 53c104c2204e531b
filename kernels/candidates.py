"""The K best tokens of each logits row, in order: maxima of stretches of columns first, then the few that can hold them."""

from __future__ import annotations

from kernels.argmax import float_order
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_max, warp_size
from kernels.project import ceil_div, divide

MAX_TILES = 1024
"""Stretches of columns of a row: their maxima are ranked in shared memory."""

_TILE = 512
"""Columns of a stretch; more where the vocabulary has more than MAX_TILES of them."""

_RUN = 32
"""Columns of a stretch that lie together; the next are a run of every other stretch away. Frequent tokens have neighbouring ids
in most vocabularies: in stretches of one piece a few would hold nearly all that is worth a look."""

_LISTED = 1024
"""Columns that may be ranked at once."""

_NOTHING = i32(-2147483648)
"""Order of a NaN, and of a stretch that has nothing left."""


def tiles_of(vocab_size: int) -> int:
    """Stretches of a vocabulary: the columns of `tile_maxima`'s output."""
    return min(-(-vocab_size // _TILE), MAX_TILES)


@kernel(writes=("best",), overlap=True)
def tile_maxima(best, logits, vocab_size, num_rows):
    """best[j, t] = the largest of logits[j] in stretch t of its first vocab_size columns, as kernels/argmax.py orders floats.

    Stretch t of S holds the runs t, t + S, t + 2 S, ... of _RUN columns each.

    Args:
        best: int32 [J, tiles_of(vocab_size)].
        logits: float32 [J, V'], V' >= vocab_size.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: grid (rows, n), a warp a stretch, n * warps about the stretches. A warp owns its element of `best`. No barrier; safe
    under capture. Oracle: oracle_dflash.tile_maxima.
    """
    wait_for_launches()
    let_next_launch_start()
    tiles, runs = i32(best.shape[1]), ceil_div(vocab_size, i32(_RUN))
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_rows[0]:
        tile = i32(cuda.blockIdx.y * warps + warp)
        while tile < tiles:
            largest = _NOTHING
            for run in range(tile, runs, tiles):
                largest = max(largest, run_maximum(logits, row, i32(run), vocab_size))
            largest = warp_max(largest)
            if lane() == i32(0):
                best[row, tile] = largest
            tile += i32(cuda.gridDim.y * warps)
        row += i32(cuda.gridDim.x)


@kernel(writes=("ids", "values"), overlap=True)
def top_candidates(ids, values, logits, best, vocab_size, num_rows):
    """ids[j, :], values[j, :] = the K largest of logits[j, :vocab_size] and their columns, largest first, for the live rows.

    The lower column goes first among equals. NaN is never a candidate; where fewer than K numbers are left, id 0 with -inf fills
    up, so that every id is valid and no filler wins.

    Args:
        ids: int32 [J, K].
        values: float32 [J, K].
        logits: float32 [J, V'], V' >= vocab_size.
        best: int32 [J, tiles] (`tile_maxima`).
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    No candidate is below the K-th largest of the maxima, and only stretches whose maximum reaches it hold any: what reaches it
    there is listed and ranked. Where that is more than the list takes (many equals), the row is searched once for each pick.

    Launch: a block a row, whose threads share all of that. Block `j` owns row j; barriers are reached by all its threads. Safe
    under capture. Oracle: oracle_dflash.top_candidates.
    """
    tile_best = cuda.shared.array(MAX_TILES, i32)
    chosen = cuda.shared.array(MAX_TILES, i32)
    listed_order = cuda.shared.array(_LISTED, i32)
    listed_column = cuda.shared.array(_LISTED, i32)
    found = cuda.shared.array(3, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    tiles, count, runs = i32(best.shape[1]), i32(ids.shape[1]), ceil_div(vocab_size, i32(_RUN))
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        for t in range(tid, tiles, threads):
            tile_best[t] = best[row, t]
        if tid == i32(0):
            found[0] = i32(0)
            found[1] = _NOTHING + i32(1)
            found[2] = i32(0)
        cuda.syncthreads()
        for t in range(tid, tiles, threads):
            mine = tile_best[t]
            rank = i32(0)
            for u in range(tiles):
                rank += i32(tile_best[u] > mine or (tile_best[u] == mine and u < t))
            if rank == count - i32(1) and mine > _NOTHING:
                found[1] = mine
        cuda.syncthreads()
        least = found[1]
        for t in range(tid, tiles, threads):
            if tile_best[t] >= least:
                chosen[cuda.atomic.add(found, 2, i32(1))] = i32(t)
        cuda.syncthreads()
        which, stretches = i32(warp), found[2]
        while which < stretches:
            run = i32(chosen[which])
            while run < runs:  # four loads under way at once
                second, third, fourth = i32(run + tiles), i32(run + i32(2) * tiles), i32(run + i32(3) * tiles)
                a, b = run_maximum(logits, row, run, vocab_size), run_maximum(logits, row, second, vocab_size)
                c, d = run_maximum(logits, row, third, vocab_size), run_maximum(logits, row, fourth, vocab_size)
                if a >= least:
                    list_run(found, listed_order, listed_column, logits, row, run, vocab_size, least)
                if b >= least:
                    list_run(found, listed_order, listed_column, logits, row, second, vocab_size, least)
                if c >= least:
                    list_run(found, listed_order, listed_column, logits, row, third, vocab_size, least)
                if d >= least:
                    list_run(found, listed_order, listed_column, logits, row, fourth, vocab_size, least)
                run += i32(4) * tiles
            which += warps
        cuda.syncthreads()
        listed = found[0]
        if listed <= i32(_LISTED):
            for e in range(tid, listed, threads):
                order, column = listed_order[e], listed_column[e]
                rank = i32(0)
                for other in range(listed):
                    rank += i32(listed_order[other] > order or (listed_order[other] == order and listed_column[other] < column))
                if rank < count:
                    ids[row, rank] = column
                    values[row, rank] = logits[row, u64(column)]
            for rank in range(listed + tid, count, threads):
                ids[row, rank] = i32(0)
                values[row, rank] = f32(NEG_INF)
        else:
            search_row(ids, values, logits, row, found, vocab_size)
        cuda.syncthreads()


@device_function
def run_maximum(logits, row, run, vocab_size):
    """The largest order in this lane's columns of a run, nothing behind the last column."""
    largest = _NOTHING
    for i in range(run * i32(_RUN) + lane(), min(i32((run + i32(1)) * i32(_RUN)), vocab_size), warp_size()):
        largest = max(largest, float_order(logits[row, u64(i)]))
    return largest


@device_function
def list_run(found, listed_order, listed_column, logits, row, run, vocab_size, least):
    """Put this lane's columns of a run on the list that reach `least`."""
    for i in range(run * i32(_RUN) + lane(), min(i32((run + i32(1)) * i32(_RUN)), vocab_size), warp_size()):
        order = float_order(logits[row, u64(i)])
        if order >= least:
            place = cuda.atomic.add(found, 0, i32(1))
            if place < i32(_LISTED):
                listed_order[place] = order
                listed_column[place] = i32(i)


@device_function
def search_row(ids, values, logits, row, found, vocab_size):
    """The same one by one: a pick is the largest behind the last one, its first column first. Called by a whole block."""
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    last_order, last_column = i32(2147483647), i32(-1)
    for pick in range(ids.shape[1]):
        cuda.syncthreads()
        if tid == i32(0):
            found[0] = vocab_size
            found[1] = _NOTHING
        cuda.syncthreads()
        largest = _NOTHING
        for i in range(tid, vocab_size, threads):
            here = float_order(logits[row, u64(i)])
            if here < last_order or (here == last_order and i > last_column):
                largest = max(largest, here)
        cuda.atomic.max(found, 1, largest)
        cuda.syncthreads()
        order = found[1]
        behind = last_column if order == last_order else i32(-1)
        column = vocab_size
        for i in range(tid, vocab_size, threads):
            if i > behind and column == vocab_size and float_order(logits[row, u64(i)]) == order:
                column = i32(i)
        cuda.atomic.min(found, 0, column)
        cuda.syncthreads()
        if order == _NOTHING:
            if tid == i32(0):
                ids[row, pick] = i32(0)
                values[row, pick] = f32(NEG_INF)
        else:
            last_order, last_column = order, found[0]
            if tid == i32(0):
                ids[row, pick] = last_column
                values[row, pick] = logits[row, u64(last_column)]
    cuda.syncthreads()
