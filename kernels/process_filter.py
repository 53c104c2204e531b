"""min_p, top_k and top_p of sampled rows: which tokens may be drawn at all. No sort: a threshold is found in a histogram.

All three keep what lies at or above a threshold, so one comparison decides. The logits of a row are counted by their distance from
its maximum, in buckets of 1/64; the buckets in which a threshold lies are few, and so are their members, which are then put in
order. Every pass over a row is shared by many blocks. Weights are integers (2**40 for the most likely token), so that sums do not
depend on their order: block size, grid and run never change what is kept.
"""

from __future__ import annotations

import math

from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, i64, kernel, u64
from kernels.process_search import FEW, LOWEST_LOGIT, WEIGHT_OF_BEST, block_sum_i64, share_of, threshold_of_row, weight_of

MEMBERS = 2048
"""Logits that are put in order at most; a power of two."""

BUCKETS = 2048
_PER_UNIT = f32(64.0)
"""Buckets a unit of logit: together they reach down to exp(-32) of the best, and the last takes what lies below."""

_GROUPS = 64
_IN_GROUP = BUCKETS // _GROUPS

_LOSS = f32(524288.0)
"""How finely is counted by how much members weigh less than the top of their bucket: 2**19 is all of it. At most 1/64 is lost, so
that a sum over 2**18 columns stays below 2**31."""

FOUND = 8
"""int64 fields of a row between the kernels."""

_LISTED, _TOP_K_BUCKET, _ABOVE_TOP_K, _FIRST_BUCKET, _ABOVE_FIRST, _TOP_P_FROM, _TOP_P_TO, _ABOVE_TOP_P = range(FOUND)

_SEGMENTS = 64
"""Parts of the members in order whose weights are summed at once."""

_AT_ONCE = 4
"""Columns that a thread loads before it uses the first: a GPU waits once for all of them."""


@device_function
def _best_of_row(best, row):
    """Largest logit of a row, from its stripes."""
    largest = NEG_INF
    for stripe in range(best.shape[0]):
        largest = max(largest, best[stripe, row])
    return largest


@device_function
def _bucket(logit, largest):
    """Which bucket a logit is in: never falls as the logit does."""
    return i32(min((largest - logit) * _PER_UNIT, f32(BUCKETS - 1)))


@device_function
def _searched(slot, temperature, top_k, top_p):
    """A histogram is needed: of a sampled row with top_k or top_p. The threshold of min_p alone follows from the maximum."""
    inside = slot >= i32(0) and slot < i32(temperature.shape[0])
    return inside and temperature[slot] > f32(0.0) and (top_k[slot] > i32(0) or top_p[slot] < f32(1.0))


@device_function
def _count(counts, losses, logit, largest):
    """Count one logit into the histogram of a block; 1 where it belongs to the last bucket, which each thread counts for itself."""
    scaled = (largest - logit) * _PER_UNIT
    last = i32(0)
    if scaled < f32(BUCKETS - 1):
        bucket = i32(scaled)
        # 1 - exp(-x) of x below 1/64, by its series.
        x = (scaled - f32(bucket)) / _PER_UNIT
        loss = x - x * x * (f32(0.5) - x * f32(1.0 / 6.0))
        cuda.atomic.add(counts, bucket, i32(1))
        cuda.atomic.add(losses, bucket, i32(loss * _LOSS + f32(0.5)))
    elif logit > NEG_INF:
        last = i32(1)
    return last


@kernel(writes=("histogram",))
def count_logits(histogram, processed, best, temperature, top_k, top_p, slot_of_row, num_rows):
    """histogram[j, 0, b] += logits of row j in bucket b; histogram[j, 1, b] += what they weigh less than the top of the bucket.

    Args:
        histogram: int32 [J, 2, BUCKETS] in/out, zero before.
        processed: float32 [J, V], best: float32 [S, J] (adjust_logits).
        temperature, top_p: float32 [N], top_k: int32 [N]; rows that need no search are left alone.
        slot_of_row: int32 [J].
        num_rows: int32 [1], live rows.

    Launch: grid (J, n), n blocks share the columns of a row. A block counts in shared memory and adds that to the row's. Barriers
    are reached by all its threads. Safe under capture. Oracle: oracle_process.count_logits.
    """
    counts = cuda.shared.array(BUCKETS, i32)
    losses = cuda.shared.array(BUCKETS, i32)
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    width = i32((vocab + i32(cuda.gridDim.y) - i32(1)) // i32(cuda.gridDim.y))
    begin = min(i32(cuda.blockIdx.y) * width, vocab)
    end = min(i32(begin + width), vocab)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        largest = _best_of_row(best, row)
        if largest > NEG_INF and _searched(i32(slot_of_row[row]), temperature, top_k, top_p):
            for b in range(tid, BUCKETS, threads):
                counts[b] = i32(0)
                losses[b] = i32(0)
            cuda.syncthreads()
            last = i32(0)
            i = i32(begin + tid)
            while i + i32(_AT_ONCE - 1) * threads < end:
                v0 = processed[row, u64(i)]
                v1 = processed[row, u64(i + threads)]
                v2 = processed[row, u64(i + i32(2) * threads)]
                v3 = processed[row, u64(i + i32(3) * threads)]
                last += _count(counts, losses, v0, largest)
                last += _count(counts, losses, v1, largest)
                last += _count(counts, losses, v2, largest)
                last += _count(counts, losses, v3, largest)
                i += i32(_AT_ONCE) * threads
            while i < end:
                last += _count(counts, losses, processed[row, u64(i)], largest)
                i += threads
            if last > i32(0):
                cuda.atomic.add(counts, BUCKETS - 1, last)
            cuda.syncthreads()
            for b in range(tid, BUCKETS, threads):
                if counts[b] > i32(0):
                    cuda.atomic.add(histogram, (i32(row), i32(0), i32(b)), counts[b])
                    cuda.atomic.add(histogram, (i32(row), i32(1), i32(b)), losses[b])
            cuda.syncthreads()


@device_function
def _first_reaching(values, groups, target, most):
    """(bucket, sum above it): the first bucket with which the sum of `values` reaches target; `most` if it comes first, or none."""
    above = i64(0)
    g = i32(0)
    while g < i32(_GROUPS) and above + groups[g] < target:
        above += groups[g]
        g += i32(1)
    b = i32(g * i32(_IN_GROUP))
    while b < i32(BUCKETS) and above + values[b] < target:
        above += values[b]
        b += i32(1)
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


@kernel(writes=("found", "threshold", "num_members"))
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
        histogram: int32 [J, 2, BUCKETS] (count_logits).
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
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    block, blocks = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x, cuda.gridDim.x * cuda.gridDim.y
    for row in range(block, num_rows[0], blocks):
        slot = i32(slot_of_row[row])
        listed = False
        floor = LOWEST_LOGIT
        largest = _best_of_row(best, row)
        if slot >= i32(0) and slot < i32(temperature.shape[0]) and temperature[slot] > f32(0.0) and largest > NEG_INF:
            if min_p[slot] > f32(0.0):
                floor = max(floor, largest + f32(math.log(min_p[slot])))
            if _searched(slot, temperature, top_k, top_p):
                for b in range(tid, BUCKETS, threads):
                    counts[b] = histogram[row, 0, b]
                cuda.syncthreads()
                for g in range(tid, _GROUPS, threads):
                    within = i64(0)
                    for b in range(g * _IN_GROUP, (g + 1) * _IN_GROUP):
                        within += i64(counts[b])
                    sums[g] = within
                for b in range(tid, BUCKETS, threads):
                    top = exp(-f32(b) / _PER_UNIT) if b < BUCKETS - 1 else f32(0.0)
                    members = f32(counts[b]) - f32(histogram[row, 1, b]) / _LOSS
                    masses[b] = i64(top * members * WEIGHT_OF_BEST)
                cuda.syncthreads()
                if tid == i32(0):
                    k_bucket, above_k = i32(-1), i64(0)
                    if top_k[slot] > i32(0):
                        total = i64(0)
                        for g in range(_GROUPS):
                            total += sums[g]
                        if total > i64(top_k[slot]):
                            above = i64(0)
                            g = i32(0)
                            while above + sums[g] < i64(top_k[slot]):
                                above += sums[g]
                                g += i32(1)
                            b = i32(g * i32(_IN_GROUP))
                            while above + i64(counts[b]) < i64(top_k[slot]):
                                above += i64(counts[b])
                                b += i32(1)
                            k_bucket, above_k = b, above
                    state[_TOP_K_BUCKET] = i64(k_bucket)
                    state[_ABOVE_TOP_K] = above_k
                    first = k_bucket
                    if min_p[slot] > f32(0.0):
                        end = _bucket(floor, largest)
                        first = end if first < i32(0) else min(first, end)
                    state[_FIRST_BUCKET] = i64(first)
                cuda.syncthreads()
                for g in range(tid, _GROUPS, threads):
                    within = i64(0)
                    for b in range(g * _IN_GROUP, (g + 1) * _IN_GROUP):
                        within += masses[b]
                    sums[g] = within
                cuda.syncthreads()
                if tid == i32(0):
                    first = i32(state[_FIRST_BUCKET])
                    p_from, p_to, above_p, above_first = i32(-1), i32(-1), i64(0), i64(-1)
                    if top_p[slot] < f32(1.0):
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
                        p_from, above_p = _first_reaching(masses, sums, share_of(least_weight, top_p[slot]), most)
                        p_to, _ = _first_reaching(masses, sums, share_of(most_weight, top_p[slot]), most)
                    state[_ABOVE_FIRST] = above_first
                    state[_TOP_P_FROM] = i64(p_from)
                    state[_TOP_P_TO] = i64(p_to)
                    state[_ABOVE_TOP_P] = above_p
                    members = i32(0)
                    k_bucket = i32(state[_TOP_K_BUCKET])
                    for b in range(max(p_from, i32(0)), p_to + i32(1)):
                        members += counts[b]
                    if k_bucket >= i32(0) and (k_bucket < p_from or k_bucket > p_to):
                        members += counts[k_bucket]
                    if first >= i32(0) and first != k_bucket and (first < p_from or first > p_to):
                        members += counts[first]
                    state[_LISTED] = i64(1) if members <= i32(MEMBERS) else i64(0)
                cuda.syncthreads()
                listed = state[_LISTED] != i64(0)
                if listed:
                    for field in range(tid, FOUND, threads):
                        found[row, field] = state[field]
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
                found[row, _LISTED] = i64(0)
        cuda.syncthreads()


@device_function
def _listed(bucket, k_bucket, first, p_from, p_to):
    return bucket in (k_bucket, first) or (bucket >= p_from and bucket <= p_to)


@kernel(writes=("members", "num_members"))
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
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    width = i32((vocab + i32(cuda.gridDim.y) - i32(1)) // i32(cuda.gridDim.y))
    begin = min(i32(cuda.blockIdx.y) * width, vocab)
    end = min(i32(begin + width), vocab)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        if found[row, _LISTED] != i64(0):
            largest = _best_of_row(best, row)
            k_bucket, first = i32(found[row, _TOP_K_BUCKET]), i32(found[row, _FIRST_BUCKET])
            p_from, p_to = i32(found[row, _TOP_P_FROM]), i32(found[row, _TOP_P_TO])
            i = i32(begin + tid)
            while i < end:
                # The loads of several columns come first; what stands behind the end is -inf, and in no bucket.
                v0 = processed[row, u64(i)]
                v1 = processed[row, u64(i + threads)] if i + threads < end else NEG_INF
                v2 = processed[row, u64(i + i32(2) * threads)] if i + i32(2) * threads < end else NEG_INF
                v3 = processed[row, u64(i + i32(3) * threads)] if i + i32(3) * threads < end else NEG_INF
                for which in range(_AT_ONCE):
                    logit = v0 if which == 0 else v1 if which == 1 else v2 if which == 2 else v3
                    if logit > NEG_INF and _listed(_bucket(logit, largest), k_bucket, first, p_from, p_to):
                        place = cuda.atomic.add(num_members, row, i32(1))
                        members[row, place] = logit
                i += i32(_AT_ONCE) * threads


@device_function
def _sort(values, count):
    """Put shared values[:count] in order, largest first, by a bitonic network (Batcher, 1968); what follows up to the next power of
    two becomes -inf. Called by a whole block."""
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    size = i32(1)
    while size < count:
        size *= i32(2)
    for i in range(count + tid, size, threads):
        values[i] = NEG_INF
    cuda.syncthreads()
    length = i32(2)
    while length <= size:
        distance = length // i32(2)
        while distance > i32(0):
            for i in range(tid, size, threads):
                other = i32(i) ^ distance
                if other > i:
                    first, second = values[i], values[other]
                    falling = (i32(i) & length) == i32(0)
                    if (falling and first < second) or (not falling and first > second):
                        values[i] = second
                        values[other] = first
            cuda.syncthreads()
            distance //= i32(2)
        length *= i32(2)


@device_function
def _before(ordered, count, bucket, largest, sums):
    """How many of the members stand in buckets before `bucket`, returned to every thread."""
    mine = i64(0)
    for i in range(i32(cuda.threadIdx.x), count, i32(cuda.blockDim.x)):
        mine += i64(1) if _bucket(ordered[i], largest) < bucket else i64(0)
    return i32(block_sum_i64(mine, sums))


@kernel(writes=("threshold",))
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
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    block, blocks = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x, cuda.gridDim.x * cuda.gridDim.y
    for row in range(block, num_rows[0], blocks):
        if found[row, _LISTED] != i64(0):
            slot, count = i32(slot_of_row[row]), i32(num_members[row])
            largest, floor = _best_of_row(best, row), threshold[row]
            for i in range(tid, count, threads):
                ordered[i] = members[row, i]
            _sort(ordered, count)
            k_bucket = i32(found[row, _TOP_K_BUCKET])
            if k_bucket >= i32(0):
                place = i32(i64(top_k[slot]) - found[row, _ABOVE_TOP_K]) - i32(1)
                floor = max(floor, ordered[_before(ordered, count, k_bucket, largest, sums) + place])
            if top_p[slot] < f32(1.0):
                first, whole = i32(found[row, _FIRST_BUCKET]), i64(0)
                for i in range(tid, count, threads):
                    if ordered[i] >= floor and _bucket(ordered[i], largest) == first:
                        whole += weight_of(ordered[i], largest)
                whole = block_sum_i64(whole, sums) + found[row, _ABOVE_FIRST]
                target = max(share_of(whole, top_p[slot]), i64(1))
                begin = _before(ordered, count, i32(found[row, _TOP_P_FROM]), largest, sums)
                end = _before(ordered, count, i32(found[row, _TOP_P_TO]) + i32(1), largest, sums)
                width = i32((end - begin + i32(_SEGMENTS - 1)) // i32(_SEGMENTS))
                for s in range(tid, _SEGMENTS, threads):
                    within = i64(0)
                    for i in range(begin + i32(s) * width, min(begin + i32(s + 1) * width, end)):
                        within += weight_of(ordered[i], largest)
                    segments[s] = within
                cuda.syncthreads()
                if tid == i32(0):
                    above = found[row, _ABOVE_TOP_P]
                    s = i32(0)
                    while s < i32(_SEGMENTS) and above + segments[s] < target:
                        above += segments[s]
                        s += i32(1)
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


@kernel(writes=("processed", "histogram"))
def filter_logits(processed, histogram, threshold, temperature, top_k, top_p, min_p, slot_of_row, num_rows):
    """processed = -inf for what min_p, then top_k, then top_p take out of a sampled row; its histogram is zero again.

    min_p keeps tokens at least min_p times as likely as the best. top_k keeps the k largest of them. top_p keeps, from the most
    likely down, tokens until they weigh top_p together. Tokens whose logit equals the last one kept are kept as well: of equals,
    none is better, and a choice by column would be a choice by spelling. The most likely token is always kept.

    Args:
        processed: float32 [J, V] in/out, after the temperature (adjust_logits).
        histogram: int32 [J, 2, BUCKETS] out: what count_logits of the next step begins with.
        threshold: float32 [J] (find_buckets, rank_members).
        temperature: float32 [N], 0 = greedy, the row is left alone.
        top_k: int32 [N], 0 = off.     top_p: float32 [N], >= 1 = off.     min_p: float32 [N], 0 = off.
        slot_of_row: int32 [J].
        num_rows: int32 [1], live rows.

    Launch: grid (J, n), n blocks share the columns of a row. A block owns its columns and its part of the histogram. No barrier.
    Safe under capture. Oracle: oracle_process.filter_logits. Source of the semantics: vLLM (order and thresholds); min_p: Nguyen
    et al., 2024; top_p: Holtzman et al., 2020.
    """
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    width = i32((vocab + i32(cuda.gridDim.y) - i32(1)) // i32(cuda.gridDim.y))
    begin = min(i32(cuda.blockIdx.y) * width, vocab)
    end = min(i32(begin + width), vocab)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        sampled = slot >= i32(0) and slot < i32(temperature.shape[0]) and temperature[slot] > f32(0.0)
        if sampled and (top_k[slot] > i32(0) or top_p[slot] < f32(1.0) or min_p[slot] > f32(0.0)):
            for b in range(i32(cuda.blockIdx.y) * threads + tid, 2 * BUCKETS, i32(cuda.gridDim.y) * threads):
                histogram[row, b // BUCKETS, b % BUCKETS] = i32(0)
            floor = threshold[row]
            i = i32(begin + tid)
            while i < end:
                v0 = processed[row, u64(i)]
                v1 = processed[row, u64(i + threads)] if i + threads < end else floor
                v2 = processed[row, u64(i + i32(2) * threads)] if i + i32(2) * threads < end else floor
                v3 = processed[row, u64(i + i32(3) * threads)] if i + i32(3) * threads < end else floor
                if v0 < floor:
                    processed[row, u64(i)] = NEG_INF
                if v1 < floor:
                    processed[row, u64(i + threads)] = NEG_INF
                if v2 < floor:
                    processed[row, u64(i + i32(2) * threads)] = NEG_INF
                if v3 < floor:
                    processed[row, u64(i + i32(3) * threads)] = NEG_INF
                i += i32(_AT_ONCE) * threads
