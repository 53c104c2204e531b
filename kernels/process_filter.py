"""min_p, top_k and top_p of sampled rows: which tokens may be drawn at all. No sort: a threshold is searched in histograms.

All three keep what lies at or above a threshold, so one comparison decides. The search counts the logits of a row by their distance
from its maximum, finds the stretch in which the threshold lies, and ranks the few logits of that stretch against each other; a
stretch of too many is searched again, more finely. Weights are integers (2**40 for the most likely token), so that sums do not
depend on their order: the block size, the grid and the run never change what is kept. No row takes more than a few passes, where a
sort of 150,000 logits takes dozens.
"""

from __future__ import annotations

import math

from kernels.argmax import float_order
from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, block_max, cuda, device_function, f32, i32, i64, kernel, u64
from kernels.process_adjust import float_of_order

_BUCKETS = 1024
_FIRST_SCALE = f32(128.0)
"""Buckets a unit of logit in the first histogram, which so covers what is at least exp(-8) as likely as the best token."""

_GROUPS = 32
_FEW = 512
"""Logits of one stretch that are ranked against each other, each with each."""

_MAX_LEVELS = 8
"""A histogram divides a stretch by 1023 at least, and a float has 2**32 values: more levels find nothing new."""

_WEIGHT_OF_BEST = f32(1099511627776.0)
_LOWEST_FLOAT = f32(-1e30)
"""adjust_logits leaves nothing below but -inf, and nothing above its opposite: differences and their multiples stay finite."""

_LARGEST_SCALE = f32(1e30)
_LOWEST = i32(-2147483648)


@device_function
def _weight(logit, best):
    """Probability of a logit as an integer, 2**40 for the best: what is less likely than 2**-40 of it weighs nothing."""
    return i64(exp(logit - best) * _WEIGHT_OF_BEST)


@device_function
def _bucket(logit, high, scale):
    """Which stretch below `high` a logit lies in: never falls as the logit does, and the last takes all the rest."""
    return i32(min((high - logit) * scale, f32(_BUCKETS - 1)))


@device_function
def _block_sum_i64(value, sums):
    """Sum of an int64 over the block, returned to every thread. sums: int64 shared [>= blockDim.x], free on return."""
    tid = i32(cuda.threadIdx.x)
    sums[tid] = value
    cuda.syncthreads()
    width = i32(cuda.blockDim.x)
    while width > i32(1):
        half = i32((width + i32(1)) // i32(2))
        if tid < width - half:
            sums[tid] += sums[tid + half]
        cuda.syncthreads()
        width = half
    total = sums[0]
    cuda.syncthreads()
    return total


@device_function
def _share(total, share):
    """share * total of an int64 below 2**58, share a float32 in [0, 1], without a float64."""
    fixed = i64(share * f32(16777216.0))
    high = total >> i64(24)
    low = total - (high << i64(24))
    return high * fixed + ((low * fixed) >> i64(24))


@device_function
def _threshold(values, row, best, floor, wanted, share, shared):
    """The largest logit t so that those >= t are `wanted` at least, or weigh at least `share` of all that are >= floor.

    wanted: int64, a count; 0: by weight. Fewer than that: floor. Every thread of the block gets the result.
    shared: counts [1024] int32, weights [1024] int64, few [512] float32, few_weights [512] int64, sums and scratch of block
    reductions, state [2] int64 (bucket, what lies above it), and the length of `few` [1] int32.
    """
    counts, weights, few, few_weights, sums, scratch, state, num_few = shared
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    width = i32(values.shape[1])
    by_weight = wanted == i64(0)
    low, high, scale = floor, best, _FIRST_SCALE
    target = wanted
    above = i64(0)
    result = floor
    level = i32(0)
    searching = True
    while searching:
        for b in range(tid, _BUCKETS, threads):
            counts[b] = i32(0)
            weights[b] = i64(0)
        cuda.syncthreads()
        # The last bucket may hold most of the row: its share is kept in registers.
        rest_count = i64(0)
        rest_weight = i64(0)
        for i in range(tid, width, threads):
            logit = values[row, u64(i)]
            if logit >= low and logit <= high:
                bucket = _bucket(logit, high, scale)
                weight = _weight(logit, best) if by_weight else i64(0)
                if bucket < i32(_BUCKETS - 1):
                    cuda.atomic.add(counts, bucket, i32(1))
                    if weight > i64(0):
                        cuda.atomic.add(weights, bucket, weight)
                else:
                    rest_count += i64(1)
                    rest_weight += weight
        rest_count = _block_sum_i64(rest_count, sums)
        rest_weight = _block_sum_i64(rest_weight, sums)
        if tid == i32(0):
            counts[_BUCKETS - 1] = i32(rest_count)
            weights[_BUCKETS - 1] = rest_weight
        cuda.syncthreads()
        for g in range(tid, _GROUPS, threads):
            within = i64(0)
            for b in range(g * (_BUCKETS // _GROUPS), (g + 1) * (_BUCKETS // _GROUPS)):
                within += weights[b] if by_weight else i64(counts[b])
            sums[g] = within
        cuda.syncthreads()
        if by_weight and level == i32(0):
            whole = i64(0)
            for g in range(_GROUPS):
                whole += sums[g]
            target = max(_share(whole, share), i64(1))
        if tid == i32(0):
            reached = above
            g = i32(0)
            while g < i32(_GROUPS) and reached + sums[g] < target:
                reached += sums[g]
                g += i32(1)
            b = i32(g * i32(_BUCKETS // _GROUPS))
            while b < i32(_BUCKETS):
                here = weights[b] if by_weight else i64(counts[b])
                if reached + here >= target:
                    break
                reached += here
                b += i32(1)
            state[0] = i64(b)
            state[1] = reached
            num_few[0] = i32(0)
        cuda.syncthreads()
        bucket = i32(state[0])
        above = state[1]
        if bucket == i32(_BUCKETS):
            searching = False
        else:
            # A part of the row: its limits, and its members where they are few.
            members = i32(counts[bucket])
            least, most = f32(best), _LOWEST_FLOAT
            for i in range(tid, width, threads):
                logit = values[row, u64(i)]
                if logit >= low and logit <= high and _bucket(logit, high, scale) == bucket:
                    least = min(least, logit)
                    most = max(most, logit)
                    if members <= i32(_FEW):
                        place = cuda.atomic.add(num_few, 0, i32(1))
                        few[place] = logit
                        few_weights[place] = _weight(logit, best) if by_weight else i64(1)
            low = -block_max(-least, scratch)
            high = block_max(most, scratch)
            result = low
            level += i32(1)
            if low == high or level == i32(_MAX_LEVELS):
                searching = False
            elif members <= i32(_FEW):
                # Kept is what the tokens above it leave room for; the smallest of those is the threshold.
                kept = high
                for i in range(tid, members, threads):
                    before = above
                    for j in range(members):
                        if few[j] > few[i]:
                            before += few_weights[j]
                    if before < target and few[i] < kept:
                        kept = few[i]
                result = -block_max(-kept, scratch)
                searching = False
            else:
                scale = min(f32(_BUCKETS) / (high - low), _LARGEST_SCALE)
        cuda.syncthreads()
    return result


@kernel(writes=("processed",))
def filter_logits(processed, temperature, top_k, top_p, min_p, slot_of_row, num_rows):
    """processed = -inf for what min_p, then top_k, then top_p take out of a sampled row.

    min_p keeps tokens at least min_p times as likely as the best. top_k keeps the k largest of them. top_p keeps, from the most
    likely down, tokens until they weigh top_p together. Tokens whose logit equals the last one kept are kept as well: of equals,
    none is better, and a choice by column would be a choice by spelling. The most likely token is always kept.

    Args:
        processed: float32 [J, V] in/out, after the temperature, no NaN (adjust_logits).
        temperature: float32 [N], 0 = greedy, the row is left alone.
        top_k: int32 [N], 0 = off.
        top_p: float32 [N], >= 1 = off.
        min_p: float32 [N], 0 = off.
        slot_of_row: int32 [J].
        num_rows: int32 [1], live rows.

    Launch: a block a row, of up to 1024 threads. Block `j` owns row j; barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_process.filter_logits. Source of the semantics: vLLM (order and thresholds); min_p: Nguyen et al., 2024; top_p:
    Holtzman et al., 2020.
    """
    counts = cuda.shared.array(_BUCKETS, i32)
    weights = cuda.shared.array(_BUCKETS, i64)
    few = cuda.shared.array(_FEW, f32)
    few_weights = cuda.shared.array(_FEW, i64)
    sums = cuda.shared.array(MAX_THREADS, i64)
    scratch = cuda.shared.array(MAX_THREADS, f32)
    state = cuda.shared.array(2, i64)
    num_few = cuda.shared.array(1, i32)
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    width = i32(processed.shape[1])
    shared = (counts, weights, few, few_weights, sums, scratch, state, num_few)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        sampled = slot >= i32(0) and slot < i32(temperature.shape[0]) and temperature[slot] > f32(0.0)
        if sampled and (top_k[slot] > i32(0) or top_p[slot] < f32(1.0) or min_p[slot] > f32(0.0)):
            order = i32(_LOWEST)
            for i in range(tid, width, threads):
                order = max(order, float_order(processed[row, u64(i)]))
            best = block_max(float_of_order(order), scratch)
            if best > NEG_INF:
                floor = _LOWEST_FLOAT
                if min_p[slot] > f32(0.0):
                    floor = max(floor, best + f32(math.log(min_p[slot])))
                if top_k[slot] > i32(0):
                    floor = _threshold(processed, row, best, floor, i64(top_k[slot]), f32(1.0), shared)
                if top_p[slot] < f32(1.0):
                    floor = _threshold(processed, row, best, floor, i64(0), top_p[slot], shared)
                for i in range(tid, width, threads):
                    if processed[row, u64(i)] < floor:
                        processed[row, u64(i)] = NEG_INF
            cuda.syncthreads()
