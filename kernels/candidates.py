"""The K best tokens of each logits row, in order: maxima of stretches of columns first, then the few that can hold them."""

from __future__ import annotations

from kernels.argmax import float_order
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_max, warp_size
from kernels.project import divide

MAX_TILES = 1024
"""Stretches of columns of a row: their maxima are ranked in shared memory."""

MAX_CANDIDATES = 256
"""Largest K."""

_TILE = 512
"""Columns of a stretch; more where the vocabulary has more than MAX_TILES of them."""

_LISTED = 1024
"""Columns that may be ranked at once."""

_NOTHING = i32(-2147483648)
"""Order of a NaN, and of a stretch that has nothing left."""


def tiles_of(vocab_size: int) -> int:
    """Stretches of a vocabulary: the columns of `tile_maxima`'s output."""
    return min(-(-vocab_size // _TILE), MAX_TILES)


@device_function
def tile_width(vocab_size, tiles):
    """Columns of a stretch."""
    return divide(i32(vocab_size + tiles - i32(1)), tiles)


@kernel(writes=("best",), overlap=True)
def tile_maxima(best, logits, vocab_size, num_rows):
    """best[j, t] = the largest of logits[j] in stretch t of its first vocab_size columns, as kernels/argmax.py orders floats.

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
    tiles = i32(best.shape[1])
    width = tile_width(vocab_size, tiles)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_rows[0]:
        tile = i32(cuda.blockIdx.y * warps + warp)
        while tile < tiles:
            largest = _NOTHING
            for i in range(tile * width + lane(), min(i32((tile + i32(1)) * width), vocab_size), warp_size()):
                largest = max(largest, float_order(logits[row, u64(i)]))
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
        ids: int32 [J, K], K <= MAX_CANDIDATES.
        values: float32 [J, K].
        logits: float32 [J, V'], V' >= vocab_size.
        best: int32 [J, tiles] (`tile_maxima`).
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    The K stretches of the largest maxima hold all candidates, none of which is below the least of these maxima: what reaches it
    is listed and ranked. Where that is more than the list takes (many equals, a tiny vocabulary), stretches are picked from one
    by one, with the maximum of what is left in each.

    Launch: a block a row, whose threads share all of that. Block `j` owns row j; barriers are reached by all its threads. Safe
    under capture. Oracle: oracle_dflash.top_candidates.
    """
    tile_best = cuda.shared.array(MAX_TILES, i32)
    chosen = cuda.shared.array(MAX_CANDIDATES, i32)
    listed_order = cuda.shared.array(_LISTED, i32)
    listed_column = cuda.shared.array(_LISTED, i32)
    found = cuda.shared.array(3, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    tiles, count = i32(best.shape[1]), i32(ids.shape[1])
    width = tile_width(vocab_size, tiles)
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
            if mine > _NOTHING:
                rank = i32(0)
                for u in range(tiles):
                    rank += i32(tile_best[u] > mine or (tile_best[u] == mine and u < t))
                if rank < count:
                    chosen[rank] = i32(t)
                    cuda.atomic.add(found, 2, i32(1))
                if rank == count - i32(1):
                    found[1] = mine
        cuda.syncthreads()
        least, stretches = found[1], found[2]
        which = i32(warp)
        while which < stretches:
            first = chosen[which] * width
            end = min(i32(first + width), vocab_size)
            column = i32(first + lane())
            while column < end:  # four loads under way at once
                second, third = i32(column + warp_size()), i32(column + i32(2) * warp_size())
                fourth = i32(column + i32(3) * warp_size())
                a, b = order_before(logits, row, column, end), order_before(logits, row, second, end)
                c, d = order_before(logits, row, third, end), order_before(logits, row, fourth, end)
                list_column(found, listed_order, listed_column, a, column, least)
                list_column(found, listed_order, listed_column, b, second, least)
                list_column(found, listed_order, listed_column, c, third, least)
                list_column(found, listed_order, listed_column, d, fourth, least)
                column = i32(column + i32(4) * warp_size())
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
            pick_from_stretches(ids, values, logits, row, tile_best, found, tiles, width, vocab_size)
        cuda.syncthreads()


@device_function
def order_before(logits, row, column, end):
    """Order of a logit, of nothing from `end` on."""
    if column < end:
        return float_order(logits[row, u64(column)])
    return _NOTHING


@device_function
def list_column(found, listed_order, listed_column, order, column, least):
    """Put a column on the list if it reaches `least`."""
    if order >= least:
        place = cuda.atomic.add(found, 0, i32(1))
        if place < i32(_LISTED):
            listed_order[place] = order
            listed_column[place] = column


@device_function
def pick_from_stretches(ids, values, logits, row, tile_best, found, tiles, width, vocab_size):
    """The same one by one: a pick is the first column that holds the largest maximum, and what is left in its stretch is whatever
    is ordered behind it. Called by a whole block; `tile_best` is used up."""
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    last_order = i32(2147483647)
    last_column = i32(-1)
    for pick in range(ids.shape[1]):
        cuda.syncthreads()
        if tid == i32(0):
            found[0] = vocab_size
            found[1] = _NOTHING
            found[2] = tiles
        cuda.syncthreads()
        largest = _NOTHING
        for t in range(tid, tiles, threads):
            largest = max(largest, tile_best[t])
        cuda.atomic.max(found, 1, largest)
        cuda.syncthreads()
        order = found[1]
        for t in range(tid, tiles, threads):
            if tile_best[t] == order:
                cuda.atomic.min(found, 2, i32(t))
        cuda.syncthreads()
        if order == _NOTHING:
            if tid == i32(0):
                ids[row, pick] = i32(0)
                values[row, pick] = f32(NEG_INF)
        else:
            tile = found[2]
            start = i32(tile * width)
            stop = min(i32(start + width), vocab_size)
            # Equals of the last pick stand behind it in its own stretch, or in a later one.
            behind = last_column if order == last_order else i32(-1)
            for i in range(start + tid, stop, threads):
                if i > behind and float_order(logits[row, u64(i)]) == order:
                    cuda.atomic.min(found, 0, i32(i))
            cuda.syncthreads()
            last_order = order
            last_column = found[0]
            rest = _NOTHING
            for i in range(start + tid, stop, threads):
                here = float_order(logits[row, u64(i)])
                if here < order or (here == order and i > last_column):
                    rest = max(rest, here)
            if tid == i32(0):
                ids[row, pick] = last_column
                values[row, pick] = logits[row, u64(last_column)]
                tile_best[tile] = _NOTHING
            cuda.syncthreads()
            cuda.atomic.max(tile_best, tile, rest)
    cuda.syncthreads()
