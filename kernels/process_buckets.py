"""Where in its histogram (kernels/process_histogram.py) the threshold of a row lies: few buckets, whose members are then ranked."""

from __future__ import annotations

import math

from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, i64, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.process_histogram import BUCKETS, LOSS, PER_UNIT, best_of_row, bucket_of, searched
from kernels.process_search import FEW, LOWEST_LOGIT, WEIGHT_OF_BEST, first_reaching, share_of, sum_groups, threshold_of_row

MEMBERS = 2048
"""Logits that are put in order at most; a power of two."""

_GROUPS = 64
_IN_GROUP = BUCKETS // _GROUPS

FOUND = 8
"""int64 fields of a row between the kernels."""

LISTED, TOP_K_BUCKET, ABOVE_TOP_K, FIRST_BUCKET, ABOVE_FIRST, TOP_P_FROM, TOP_P_TO, ABOVE_TOP_P = range(FOUND)


@device_function
def _reaching(values, groups, target, most):
    """(bucket, sum above it): the first bucket with which the sum of `values` reaches target; `most` if it comes first, or none."""
    b, above = first_reaching(values, groups, i32(_GROUPS), i32(_IN_GROUP), i64(0), target)
    if b > most:
        b = most
        above = i64(0)
        for earlier in range(most):
            above += values[earlier]
    return b, above


@device_function
def _above(values, groups, bucket):
    """Sum of the buckets before `bucket`."""
    total = i64(0)
    for g in range(bucket // i32(_IN_GROUP)):
        total += groups[g]
    for b in range(bucket // i32(_IN_GROUP) * i32(_IN_GROUP), bucket):
        total += values[b]
    return total


@kernel(writes=("found", "threshold", "num_members", "histogram"), overlap=True)
def find_buckets(
    found, threshold, num_members, histogram, processed, best, temperature, top_k, top_p, min_p, slot_of_row, num_rows
):
    """Of each row, either its threshold, or the buckets whose members have to be ranked for it, and what lies above these.

    Args:
        found: int64 [J, FOUND] out: 1 if members are to be listed; bucket of top_k (-1: off), tokens above it; the bucket in which
            what min_p and top_k leave ends (-1: they are off), weight above it (-1: all weight); first and last bucket in which
            top_p can end (-1: off), weight above the first.
        threshold: float32 [J] out: of min_p; where no members are to be listed, of all three. -1e30 keeps everything.
        num_members: int32 [J] out: 0.
        histogram: int32 [J, 2, BUCKETS] in/out (count_logits), zero behind: what the next step begins with.
        processed: float32 [J, V], best: float32 [S, J] (adjust_logits).
        temperature, top_p, min_p: float32 [N], top_k: int32 [N].
        slot_of_row: int32 [J].
        num_rows: int32 [1], live rows.

    Launch: a block a row. A row whose buckets hold more than MEMBERS logits is searched here, by this block alone. Barriers are
    reached by all its threads. Safe under capture. Oracle: oracle_process.find_buckets.
    """
    masses = cuda.shared.array(BUCKETS, i64)
    counts = cuda.shared.array(BUCKETS, i32)
    few = cuda.shared.array(FEW, f32)
    few_weights = cuda.shared.array(FEW, i64)
    sums = cuda.shared.array(MAX_THREADS, i64)
    scratch = cuda.shared.array(MAX_THREADS, f32)
    state = cuda.shared.array(FOUND, i64)
    num_few = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    block, blocks = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x, cuda.gridDim.x * cuda.gridDim.y
    for row in range(block, num_rows[0], blocks):
        slot = i32(slot_of_row[row])
        listed = False
        floor = LOWEST_LOGIT
        sampled = slot >= i32(0) and slot < i32(temperature.shape[0]) and temperature[max(slot, i32(0))] > f32(0.0)
        sampled = sampled and (min_p[slot] > f32(0.0) or top_k[slot] > i32(0) or top_p[slot] < f32(1.0))
        largest = best_of_row(best, row) if sampled else NEG_INF
        if largest > NEG_INF:
            if min_p[slot] > f32(0.0):
                floor = max(floor, largest + f32(math.log(min_p[slot])))
            if searched(slot, temperature, top_k, top_p):
                weighed = top_p[slot] < f32(1.0)
                b = tid
                while b < BUCKETS:
                    counts[b] = histogram[row, 0, b]
                    b += threads
                cuda.syncthreads()
                sum_groups(counts, sums, i32(_GROUPS), i32(_IN_GROUP))
                b = tid
                while b < BUCKETS:
                    histogram[row, 0, b] = i32(0)
                    if weighed:
                        top = exp(-f32(b) / PER_UNIT) if b < BUCKETS - 1 else f32(0.0)
                        members = f32(counts[b]) - f32(histogram[row, 1, b]) / LOSS
                        masses[b] = i64(top * members * WEIGHT_OF_BEST)
                        histogram[row, 1, b] = i32(0)
                    b += threads
                cuda.syncthreads()
                if tid == i32(0):
                    k_bucket, above_k = i32(-1), i64(0)
                    if top_k[slot] > i32(0):
                        total = i64(0)
                        for g in range(_GROUPS):
                            total += sums[g]
                        if total > i64(top_k[slot]):
                            wanted = i64(top_k[slot])
                            k_bucket, above_k = first_reaching(counts, sums, i32(_GROUPS), i32(_IN_GROUP), i64(0), wanted)
                    state[TOP_K_BUCKET] = i64(k_bucket)
                    state[ABOVE_TOP_K] = above_k
                    first = k_bucket
                    if min_p[slot] > f32(0.0):
                        end = bucket_of(floor, largest)
                        first = end if first < i32(0) else min(first, end)
                    state[FIRST_BUCKET] = i64(first)
                cuda.syncthreads()
                if weighed:
                    sum_groups(masses, sums, i32(_GROUPS), i32(_IN_GROUP))
                cuda.syncthreads()
                if tid == i32(0):
                    first = i32(state[FIRST_BUCKET])
                    p_from, p_to, above_p, above_first = i32(-1), i32(-1), i64(0), i64(-1)
                    if weighed:
                        most = i32(BUCKETS - 1)
                        least_weight, most_weight = i64(0), i64(0)
                        if first >= i32(0):
                            above_first = _above(masses, sums, first)
                            least_weight, most_weight, most = above_first, above_first + masses[first], first
                        else:
                            above_first = _above(masses, sums, i32(BUCKETS - 1))
                            least_weight, most_weight = above_first, above_first
                        # Members weigh by exp itself what the histogram has by a series: a millionth is room enough for both.
                        least_weight = max(least_weight - (least_weight >> i64(20)), i64(WEIGHT_OF_BEST))
                        most_weight = max(most_weight + (most_weight >> i64(20)), i64(WEIGHT_OF_BEST))
                        p_from, above_p = _reaching(masses, sums, share_of(least_weight, top_p[slot]), most)
                        p_to, _ = _reaching(masses, sums, share_of(most_weight, top_p[slot]), most)
                    state[ABOVE_FIRST] = above_first
                    state[TOP_P_FROM] = i64(p_from)
                    state[TOP_P_TO] = i64(p_to)
                    state[ABOVE_TOP_P] = above_p
                    members = i32(0)
                    k_bucket = i32(state[TOP_K_BUCKET])
                    for b in range(max(p_from, i32(0)), p_to + i32(1)):
                        members += counts[b]
                    if k_bucket >= i32(0) and (k_bucket < p_from or k_bucket > p_to):
                        members += counts[k_bucket]
                    if first >= i32(0) and first != k_bucket and (first < p_from or first > p_to):
                        members += counts[first]
                    state[LISTED] = i64(1) if members <= i32(MEMBERS) else i64(0)
                cuda.syncthreads()
                listed = state[LISTED] != i64(0)
                if listed:
                    field = tid
                    while field < FOUND:
                        found[row, field] = state[field]
                        field += threads
                else:
                    shared = (counts, masses, few, few_weights, sums, scratch, state, num_few)
                    if top_k[slot] > i32(0):
                        floor = threshold_of_row(processed, row, largest, floor, i64(top_k[slot]), f32(1.0), shared)
                    if top_p[slot] < f32(1.0):
                        floor = threshold_of_row(processed, row, largest, floor, i64(0), top_p[slot], shared)
        if tid == i32(0):
            threshold[row] = floor
            num_members[row] = i32(0)
            if not listed:
                found[row, LISTED] = i64(0)
        cuda.syncthreads()
