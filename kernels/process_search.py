"""The threshold of top_k or top_p in one row, by one block alone: for rows whose histogram (kernels/process_histogram.py) leaves
too many logits in question, such as thousands of equals.

The search counts the logits of a row by their distance from its maximum, finds the stretch in which the threshold lies, and ranks
the few logits of that stretch against each other; a stretch of too many is searched again, more finely.
"""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import block_max, block_sum, cuda, device_function, f32, i32, i64, u64
from kernels.lang_warp import lane, warp_size, warp_sum

_BUCKETS = 1024
_FIRST_SCALE = f32(128.0)
"""Buckets a unit of logit in the first histogram, which so covers what is at least exp(-8) as likely as the best token."""

_GROUPS = 32
_IN_GROUP = _BUCKETS // _GROUPS
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
def block_total_i64(value, sums):
    """kernels.block_reduce.block_total of int64 integers, whose order decides nothing. sums: int64 shared [>= blockDim.x]; free on
    return."""
    threads, width = i32(cuda.blockDim.x), warp_size()
    if threads % width != i32(0):
        return block_sum(value, sums)
    within = warp_sum(value)
    if lane() == i32(0):
        sums[i32(cuda.threadIdx.x) // width] = within
    cuda.syncthreads()
    total = i64(0)
    for warp in range(lane(), threads // width, width):
        total += sums[warp]
    total = warp_sum(total)
    cuda.syncthreads()
    return total


@device_function
def sum_groups(values, groups, count, each):
    """groups[g] = sum of the g-th `each` of `values`, int64, for `count` groups; each: a power of two. By a whole block, without a
    barrier. Groups are added from other places on, so that threads side by side read other banks of memory."""
    g = i32(cuda.threadIdx.x)
    while g < count:
        within = i64(0)
        for nth in range(each):
            within += i64(values[i32(g * each + ((i32(nth) + g) & (each - i32(1))))])
        groups[g] = within
        g += i32(cuda.blockDim.x)


@device_function
def reached_within(values, start, count, above, target):
    """(n, sum): how many of values[start : start + count], none below 0, come before the one with which `above` and their sum reach
    target, or all; and `above` with their sum. By one thread, which looks at all: their loads then wait for nothing."""
    n, total = i32(0), above
    for i in range(count):
        total += i64(values[start + i32(i)])
        if total < target:
            n, above = i32(i + 1), total
    return n, above


@device_function
def first_reaching(values, groups, count, each, above, target):
    """(place, sum above it): the first of `values` with which `above` and the sum of them reaches target, or behind the last.
    groups: of sum_groups. By one thread."""
    g, above = reached_within(groups, i32(0), count, above, target)
    n, above = reached_within(values, i32(g * each), each if g < count else i32(0), above, target)
    return i32(g * each + n), above


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
        rest_count = block_total_i64(rest_count, sums)
        rest_weight = block_total_i64(rest_weight, sums)
        if tid == i32(0):
            counts[_BUCKETS - 1] = i32(rest_count)
            weights[_BUCKETS - 1] = rest_weight
        cuda.syncthreads()
        if by_weight:
            sum_groups(weights, sums, i32(_GROUPS), i32(_IN_GROUP))
        else:
            sum_groups(counts, sums, i32(_GROUPS), i32(_IN_GROUP))
        cuda.syncthreads()
        if by_weight and level == i32(0):
            whole = i64(0)
            for g in range(_GROUPS):
                whole += sums[g]
            target = max(share_of(whole, share), i64(1))
        if tid == i32(0):
            if by_weight:
                b, reached = first_reaching(weights, sums, i32(_GROUPS), i32(_IN_GROUP), above, target)
            else:
                b, reached = first_reaching(counts, sums, i32(_GROUPS), i32(_IN_GROUP), above, target)
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
