"""The logits of a row that are in question for its threshold (kernels/process_buckets.py): listed, put in order, and cut."""

from __future__ import annotations

from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, i64, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.process_buckets import (
    ABOVE_FIRST,
    ABOVE_TOP_K,
    ABOVE_TOP_P,
    FIRST_BUCKET,
    LISTED,
    MEMBERS,
    TOP_K_BUCKET,
    TOP_P_FROM,
    TOP_P_TO,
)
from kernels.process_histogram import BUCKETS, PER_UNIT, best_of_row, bucket_of
from kernels.process_row import AT_ONCE, four_of, part_of
from kernels.process_search import block_total_i64, reached_within, share_of, weight_of
from kernels.project import ceil_div

_SEGMENTS = 64
"""Parts of the members in order whose weights are summed at once."""


@device_function
def _within(logit, largest, since, until):
    """Whether a logit is in a bucket from `since` on and before `until`."""
    scaled = (largest - logit) * PER_UNIT
    return scaled >= since and scaled < until


@device_function
def _list(members, num_members, row, logit, largest, k_bucket, first, p_from, p_to):
    """Put a logit among the members of its row if its bucket is in question."""
    if logit > NEG_INF:
        bucket = bucket_of(logit, largest)
        if bucket in (k_bucket, first) or (bucket >= p_from and bucket <= p_to):
            place = cuda.atomic.add(num_members, row, i32(1))
            members[row, place] = logit


@kernel(writes=("members", "num_members"), overlap=True)
def list_members(members, num_members, found, processed, best, slot_of_row, num_rows):
    """members[j, :num_members[j]] = the logits of row j in the buckets that have to be ranked, in any order.

    Args:
        members: float32 [J, MEMBERS] out.
        num_members: int32 [J] in/out, 0 before.
        found: int64 [J, FOUND] (find_buckets).
        processed: float32 [J, V], best: float32 [S, J] (adjust_logits).
        slot_of_row: int32 [J], num_rows: int32 [1], live rows.

    Launch: grid (J, n), n blocks share the columns of a row. No barrier. Safe under capture. Oracle: oracle_process.list_members.
    """
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    begin, end = part_of(i32(processed.shape[1]), cuda.blockIdx.y, cuda.gridDim.y)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        if found[row, LISTED] != i64(0):
            largest = best_of_row(best, row)
            k_bucket, first = i32(found[row, TOP_K_BUCKET]), i32(found[row, FIRST_BUCKET])
            p_from, p_to = i32(found[row, TOP_P_FROM]), i32(found[row, TOP_P_TO])
            furthest = max(max(k_bucket, first), p_to)
            nearest = i32(BUCKETS - 1)
            for which in range(3):
                bucket = k_bucket if which == 0 else first if which == 1 else p_from
                nearest = min(nearest, bucket) if bucket >= i32(0) else nearest
            since, until = f32(nearest), f32(furthest + i32(1)) if furthest < i32(BUCKETS - 1) else f32(float("inf"))
            i = i32(begin + tid)
            while i + i32(AT_ONCE - 1) * threads < end:
                v0, v1, v2, v3 = four_of(processed, row, i, threads)
                # Nearly all logits are in front of all buckets in question, or behind them.
                near = _within(v0, largest, since, until) or _within(v1, largest, since, until)
                if near or _within(v2, largest, since, until) or _within(v3, largest, since, until):
                    _list(members, num_members, row, v0, largest, k_bucket, first, p_from, p_to)
                    _list(members, num_members, row, v1, largest, k_bucket, first, p_from, p_to)
                    _list(members, num_members, row, v2, largest, k_bucket, first, p_from, p_to)
                    _list(members, num_members, row, v3, largest, k_bucket, first, p_from, p_to)
                i += i32(AT_ONCE) * threads
            while i < end:
                _list(members, num_members, row, processed[row, u64(i)], largest, k_bucket, first, p_from, p_to)
                i += threads


@device_function
def _sort(values, count):
    """Put shared values[:count] in order, largest first, by a bitonic network (Batcher, 1968); what follows up to the next power of
    two becomes -inf. Called by a whole block."""
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    size = i32(1)
    while size < count:
        size *= i32(2)
    i = count + tid
    while i < size:
        values[i] = NEG_INF
        i += threads
    cuda.syncthreads()
    length = i32(2)
    while length <= size:
        distance = length >> i32(1)
        while distance > i32(0):
            i = tid
            while i < size:
                other = i32(i) ^ distance
                if other > i:
                    first, second = values[i], values[other]
                    falling = (i32(i) & length) == i32(0)
                    if (falling and first < second) or (not falling and first > second):
                        values[i] = second
                        values[other] = first
                i += threads
            cuda.syncthreads()
            distance >>= i32(1)
        length *= i32(2)


@device_function
def _before(ordered, count, bucket, largest, sums):
    """How many of the members stand in buckets before `bucket`, returned to every thread."""
    mine = i64(0)
    i = i32(cuda.threadIdx.x)
    while i < count:
        mine += i64(1) if bucket_of(ordered[i], largest) < bucket else i64(0)
        i += i32(cuda.blockDim.x)
    return i32(block_total_i64(mine, sums))


@kernel(writes=("threshold",), overlap=True)
def rank_members(threshold, members, num_members, found, best, top_k, top_p, slot_of_row, num_rows):
    """threshold = the last logit that min_p, top_k and top_p keep, of rows whose members were listed.

    Args:
        threshold: float32 [J] in/out (find_buckets: that of min_p).
        members: float32 [J, MEMBERS], num_members: int32 [J] (list_members).
        found: int64 [J, FOUND] (find_buckets).
        best: float32 [S, J] (adjust_logits).
        top_k: int32 [N], top_p: float32 [N].
        slot_of_row: int32 [J].
        num_rows: int32 [1], live rows.

    Launch: a block a row, which puts the members in order. Barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_process.rank_members.
    """
    ordered = cuda.shared.array(MEMBERS, f32)
    sums = cuda.shared.array(MAX_THREADS, i64)
    segments = cuda.shared.array(_SEGMENTS, i64)
    last = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    block, blocks = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x, cuda.gridDim.x * cuda.gridDim.y
    for row in range(block, num_rows[0], blocks):
        if found[row, LISTED] != i64(0):
            slot, count = i32(slot_of_row[row]), i32(num_members[row])
            largest, floor = best_of_row(best, row), threshold[row]
            i = tid
            while i < count:
                ordered[i] = members[row, i]
                i += threads
            _sort(ordered, count)
            k_bucket = i32(found[row, TOP_K_BUCKET])
            if k_bucket >= i32(0):
                place = i32(i64(top_k[slot]) - found[row, ABOVE_TOP_K]) - i32(1)
                floor = max(floor, ordered[_before(ordered, count, k_bucket, largest, sums) + place])
            if top_p[slot] < f32(1.0):
                first, whole = i32(found[row, FIRST_BUCKET]), i64(0)
                i = tid
                while i < count:
                    if ordered[i] >= floor and bucket_of(ordered[i], largest) == first:
                        whole += weight_of(ordered[i], largest)
                    i += threads
                whole = block_total_i64(whole, sums) + found[row, ABOVE_FIRST]
                target = max(share_of(whole, top_p[slot]), i64(1))
                begin = _before(ordered, count, i32(found[row, TOP_P_FROM]), largest, sums)
                end = _before(ordered, count, i32(found[row, TOP_P_TO]) + i32(1), largest, sums)
                width = ceil_div(end - begin, i32(_SEGMENTS))
                s = tid
                while s < _SEGMENTS:
                    within = i64(0)
                    for i in range(begin + i32(s) * width, min(begin + i32(s + 1) * width, end)):
                        within += weight_of(ordered[i], largest)
                    segments[s] = within
                    s += threads
                cuda.syncthreads()
                if tid == i32(0):
                    s, above = reached_within(segments, i32(0), i32(_SEGMENTS), found[row, ABOVE_TOP_P], target)
                    i = min(begin + s * width, end - i32(1))
                    while i < end - i32(1) and above + weight_of(ordered[i], largest) < target:
                        above += weight_of(ordered[i], largest)
                        i += i32(1)
                    last[0] = i
                cuda.syncthreads()
                floor = max(floor, ordered[last[0]])
            if tid == i32(0):
                threshold[row] = floor
            cuda.syncthreads()
