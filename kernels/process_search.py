"""The threshold of top_k or top_p in one row, by one block alone: for rows whose histogram (kernels/process_histogram.py) leaves
too many logits in question, such as thousands of equals.

The search counts the logits of a row by their distance from its maximum, finds the stretch in which the threshold lies, and ranks
the few logits of that stretch against each other; a stretch of too many is searched again, more finely.
"""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import block_max, cuda, device_function, f32, i32, i64, u64

_BUCKETS = 1024
_FIRST_SCALE = f32(128.0)
"""Buckets a unit of logit in the first histogram, which so covers what is at least exp(-8) as likely as the best token."""

_GROUPS = 32
FEW = 512
"""Logits of one stretch that are ranked against each other, each with each."""

_MAX_LEVELS = 8
"""A histogram divides a stretch by 1023 at least, and a float has 2**32 values: more levels find nothing new."""

WEIGHT_OF_BEST = f32(1099511627776.0)
LOWEST_LOGIT = f32(-1e30)
"""adjust_logits leaves nothing below but -inf, and nothing above its opposite: differences and their multiples stay finite."""

_LARGEST_SCALE = f32(1e30)


@device_function
def weight_of(logit, best):
    """Probability of a logit as an integer, 2**40 for the best: what is less likely than 2**-40 of it weighs nothing."""
    return i64(exp(logit - best) * WEIGHT_OF_BEST)


@device_function
def _bucket(logit, high, scale):
    """Which stretch below `high` a logit lies in: never falls as the logit does, and the last takes all the rest."""
    return i32(min((high - logit) * scale, f32(_BUCKETS - 1)))


@device_function
def block_sum_i64(value, sums):
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
def share_of(total, share):
    """share * total of an int64 below 2**58, share a float32 in [0, 1], without a float64."""
    fixed = i64(share * f32(16777216.0))
    high = total >> i64(24)
    low = total - (high << i64(24))
    return high * fixed + ((low * fixed) >> i64(24))


@device_function
def threshold_of_row(values, row, best, floor, wanted, share, shared):
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
        b = tid
        while b < _BUCKETS:
            counts[b] = i32(0)
            weights[b] = i64(0)
            b += threads
        cuda.syncthreads()
        # The last bucket may hold most of the row: its share is kept in registers.
        rest_count = i64(0)
        rest_weight = i64(0)
        i = tid
        while i < width:
            logit = values[row, u64(i)]
            if logit >= low and logit <= high:
                bucket = _bucket(logit, high, scale)
                weight = weight_of(logit, best) if by_weight else i64(0)
                if bucket < i32(_BUCKETS - 1):
                    cuda.atomic.add(counts, bucket, i32(1))
                    if weight > i64(0):
                        cuda.atomic.add(weights, bucket, weight)
                else:
                    rest_count += i64(1)
                    rest_weight += weight
            i += threads
        rest_count = block_sum_i64(rest_count, sums)
        rest_weight = block_sum_i64(rest_weight, sums)
        if tid == i32(0):
            counts[_BUCKETS - 1] = i32(rest_count)
            weights[_BUCKETS - 1] = rest_weight
        cuda.syncthreads()
        g = tid
        while g < _GROUPS:
            within = i64(0)
            for b in range(g * (_BUCKETS // _GROUPS), (g + 1) * (_BUCKETS // _GROUPS)):
                within += weights[b] if by_weight else i64(counts[b])
            sums[g] = within
            g += threads
        cuda.syncthreads()
        if by_weight and level == i32(0):
            whole = i64(0)
            for g in range(_GROUPS):
                whole += sums[g]
            target = max(share_of(whole, share), i64(1))
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
            least, most = f32(best), LOWEST_LOGIT
            i = tid
            while i < width:
                logit = values[row, u64(i)]
                if logit >= low and logit <= high and _bucket(logit, high, scale) == bucket:
                    least = min(least, logit)
                    most = max(most, logit)
                    if members <= i32(FEW):
                        place = cuda.atomic.add(num_few, 0, i32(1))
                        few[place] = logit
                        few_weights[place] = weight_of(logit, best) if by_weight else i64(1)
                i += threads
            low = -block_max(-least, scratch)
            high = block_max(most, scratch)
            result = low
            level += i32(1)
            if low == high or level == i32(_MAX_LEVELS):
                searching = False
            elif members <= i32(FEW):
                # Kept is what the tokens above it leave room for; the smallest of those is the threshold.
                kept = high
                i = tid
                while i < members:
                    before = above
                    for j in range(members):
                        if few[j] > few[i]:
                            before += few_weights[j]
                    if before < target and few[i] < kept:
                        kept = few[i]
                    i += threads
                result = -block_max(-kept, scratch)
                searching = False
            else:
                scale = min(f32(_BUCKETS) / (high - low), _LARGEST_SCALE)
        cuda.syncthreads()
    return result
