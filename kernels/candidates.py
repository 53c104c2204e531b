"""The K best tokens of each logits row, in order: maxima of stretches of columns first, then the few that can hold them.

Blocks of a cluster share a row, so that one launch is enough for both.
"""

from __future__ import annotations

from kernels.argmax import float_of_order, float_order
from kernels.lang import NEG_INF, SIMULATED, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import (
    cluster_barrier,
    cluster_rank,
    cluster_size,
    let_next_launch_start,
    read_block,
    wait_for_launches,
)
from kernels.lang_warp import lane, octet_lane, octet_size, octet_sum, primitive, warp_barrier, warp_max, warp_size
from kernels.project import ceil_div, divide

if not SIMULATED:
    import kernels.candidates_gpu as candidates_gpu

CLUSTER = 8
"""Blocks that share a row."""

STRETCHES = 128
"""Stretches of columns of a row at most: as many as a cluster has warps of sixteen a block, and few enough to rank their maxima."""

_RUN = 32
"""Columns of a stretch that lie together; the next are a run of every other stretch away. Frequent tokens have neighbouring ids
in most vocabularies: in stretches of one piece a few would hold nearly all that is worth a look."""

_LISTED = 512
"""Columns that a block may put forward."""

_RANKED = 1024
"""Columns that may be ranked at once."""

_NOTHING = i32(-2147483648)
"""Order of a NaN, and of a stretch that has nothing left."""


@primitive(lambda *types: None if SIMULATED else candidates_gpu.yes)
def has_wide_loads():
    """Do the two functions behind this one do the work of the two behind them?"""
    return False


@primitive(lambda *types: None if SIMULATED else candidates_gpu.stretch_maximum)
def wide_maximum(logits, row, stretch, stretches, vocab_size):
    """`stretch_maximum` on a GPU; nothing elsewhere."""
    return _NOTHING


@primitive(lambda *types: None if SIMULATED else candidates_gpu.list_stretch)
def wide_list(found, listed_order, listed_column, logits, row, stretch, stretches, vocab_size, least):
    """`list_stretch` on a GPU; nothing elsewhere."""


@device_function
def stretch_maximum(logits, row, stretch, stretches, vocab_size):
    """The largest order (kernels/argmax.py) in this lane's columns of a stretch."""
    if has_wide_loads():
        largest = wide_maximum(logits, row, stretch, stretches, vocab_size)
    else:
        largest = _NOTHING
        for run in range(stretch, ceil_div(vocab_size, i32(_RUN)), stretches):
            for i in range(run * i32(_RUN) + lane(), min(i32((run + i32(1)) * i32(_RUN)), vocab_size), warp_size()):
                largest = max(largest, float_order(logits[row, u64(i)]))
    return largest


@device_function
def list_stretch(found, listed_order, listed_column, logits, row, stretch, stretches, vocab_size, least):
    """Put this lane's columns of a stretch on the list that reach `least`; found[0] counts them, beyond the list too."""
    if has_wide_loads():
        wide_list(found, listed_order, listed_column, logits, row, stretch, stretches, vocab_size, least)
    else:
        for run in range(stretch, ceil_div(vocab_size, i32(_RUN)), stretches):
            for i in range(run * i32(_RUN) + lane(), min(i32((run + i32(1)) * i32(_RUN)), vocab_size), warp_size()):
                order = float_order(logits[row, u64(i)])
                if order >= least:
                    place = cuda.atomic.add(found, 0, i32(1))
                    if place < i32(_LISTED):
                        listed_order[place] = order
                        listed_column[place] = i32(i)


@kernel(writes=("ids", "values"), overlap=True, cluster=CLUSTER)
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

    No candidate is below the K-th largest of the stretches' maxima, and only stretches whose maximum reaches it hold any: what
    reaches it there is listed and ranked. Where that is more than the lists take (many equals), the row is searched once for each
    pick.

    Launch: grid (rows,), sixteen warps at best; a GPU makes a cluster of each row, whose warps share the stretches and whose first
    block ranks what the others list. Barriers are reached by all threads of a cluster. Safe under capture.
    Oracle: oracle_dflash.top_candidates.
    """
    maxima = cuda.shared.array(STRETCHES, i32)
    ranked = cuda.shared.array(STRETCHES, i32)
    listed_order = cuda.shared.array(_LISTED, i32)
    listed_column = cuda.shared.array(_LISTED, i32)
    all_order = cuda.shared.array(_RANKED, i32)
    all_column = cuda.shared.array(_RANKED, i32)
    begins = cuda.shared.array(CLUSTER, i32)
    found = cuda.shared.array(4, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    rank, ranks = cluster_rank(), cluster_size()
    place, places, count = rank * warps + warp, ranks * warps, i32(ids.shape[1])
    stretches = min(ceil_div(vocab_size, i32(_RUN)), i32(STRETCHES))
    row = divide(cuda.blockIdx.x, ranks)
    while row < num_rows[0]:
        stretch = i32(place)
        while stretch < stretches:
            largest = warp_max(stretch_maximum(logits, row, stretch, stretches, vocab_size))
            if lane() == i32(0):
                maxima[stretch] = largest
            stretch += places
        if tid == i32(0):
            found[0] = i32(0)
            found[1] = _NOTHING + i32(1)
            found[2] = i32(0)
            found[3] = i32(0)
        cuda.syncthreads()
        cluster_barrier()
        t = i32(tid)
        while t < stretches:
            turn = t - divide(t, places) * places
            ranked[t] = read_block(maxima, t, divide(turn, warps))
            t += threads
        cuda.syncthreads()
        turn = i32(0)
        while turn < stretches:  # every lane goes as often: octet_sum wants them all
            t = turn + divide(tid, octet_size())
            mine, above, u = ranked[min(t, stretches - i32(1))], f32(0.0), octet_lane()
            while u < stretches:
                other = ranked[u]
                above += f32(1.0) if other > mine or (other == mine and u < t) else f32(0.0)
                u += octet_size()
            above = octet_sum(above)
            if t < stretches and above == f32(count - i32(1)) and mine > _NOTHING:
                found[1] = mine
            turn += max(divide(threads, octet_size()), i32(1))
        cuda.syncthreads()
        least = found[1]
        stretch = i32(place)
        while stretch < stretches:
            if maxima[stretch] >= least:
                list_stretch(found, listed_order, listed_column, logits, row, stretch, stretches, vocab_size, least)
            stretch += places
        cuda.syncthreads()
        cluster_barrier()
        if rank == i32(0):
            other = i32(warp)
            while other < ranks:
                listed = read_block(found, i32(0), other)
                if lane() == i32(0):
                    begins[other] = cuda.atomic.add(found, 2, listed)
                warp_barrier()
                first, e = begins[other], i32(lane())
                while e < min(listed, i32(_LISTED)):
                    if first + e < i32(_RANKED):
                        all_order[first + e] = read_block(listed_order, e, other)
                        all_column[first + e] = read_block(listed_column, e, other)
                    e += warp_size()
                if lane() == i32(0) and listed > i32(_LISTED):
                    found[3] = i32(1)
                other += warps
            cuda.syncthreads()
            total = found[2]
            if found[3] == i32(0) and total <= i32(_RANKED):
                rank_listed(ids, values, all_order, all_column, row, total)
            else:
                search_row(ids, values, logits, row, found, vocab_size)
        cuda.syncthreads()
        cluster_barrier()  # nobody begins anew while its list is read
        row += divide(cuda.gridDim.x, ranks)


@device_function
def rank_listed(ids, values, order, column, row, listed):
    """Candidates of a row from the columns that are listed, fillers behind them. Called by a whole block."""
    tid, threads, count = i32(cuda.threadIdx.x), i32(cuda.blockDim.x), i32(ids.shape[1])
    e = i32(tid)
    while e < listed:
        mine, at, above = order[e], column[e], i32(0)
        for other in range(listed):
            above += i32(order[other] > mine or (order[other] == mine and column[other] < at))
        if above < count:
            ids[row, above] = at
            values[row, above] = float_of_order(mine)
        e += threads
    for filler in range(listed + tid, count, threads):
        ids[row, filler] = i32(0)
        values[row, filler] = f32(NEG_INF)


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
