"""min_p, top_k and top_p of sampled rows: which tokens may be drawn at all. No sort: a threshold is found in a histogram.

All three keep what lies at or above a threshold, so one comparison decides, and whoever reads the logits makes it. The logits of a
row are counted by their distance from its maximum, in buckets of 1/64; the buckets in which a threshold lies are few
(kernels/process_buckets.py), and so are their members, which are then put in order (kernels/process_members.py). Every pass over a
row is shared by many blocks. Weights are integers (2**40 for the most likely token), so that sums do not depend on their order:
block size, grid and run never change what is kept.

min_p keeps tokens at least min_p times as likely as the best. top_k keeps the k largest of them. top_p keeps, from the most likely
down, tokens until they weigh top_p together. Tokens whose logit equals the last one kept are kept as well: of equals, none is
better, and a choice by column would be a choice by spelling. The most likely token is always kept.

Source of the semantics: vLLM (order and thresholds); min_p: Nguyen et al., 2024; top_p: Holtzman et al., 2020.
"""

from __future__ import annotations

from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_max, warp_size
from kernels.process_row import AT_ONCE, four_of, part_of

BUCKETS = 2048
PER_UNIT = f32(64.0)
"""Buckets a unit of logit: together they reach down to exp(-32) of the best, and the last takes what lies below."""

LOSS = f32(524288.0)
"""How finely is counted by how much members weigh less than the top of their bucket: 2**19 is all of it. At most 1/64 is lost, so
that a sum over 2**18 columns stays below 2**31."""


@device_function
def best_of_row(best, row):
    """Largest logit of a row, from its stripes. Called by a whole block, each warp of which shares them among its threads."""
    alone = i32(cuda.blockDim.x) % warp_size() != i32(0)
    largest, stripe = NEG_INF, i32(0) if alone else lane()
    while stripe < i32(best.shape[0]):
        largest = max(largest, best[stripe, row])
        stripe += i32(1) if alone else warp_size()
    return largest if alone else warp_max(largest)


@device_function
def bucket_of(logit, largest):
    """Which bucket a logit is in: never falls as the logit does."""
    return i32(min((largest - logit) * PER_UNIT, f32(BUCKETS - 1)))


@device_function
def searched(slot, temperature, top_k, top_p):
    """A histogram is needed: of a sampled row with top_k or top_p. The threshold of min_p alone follows from the maximum."""
    inside = slot >= i32(0) and slot < i32(temperature.shape[0])
    return inside and temperature[slot] > f32(0.0) and (top_k[slot] > i32(0) or top_p[slot] < f32(1.0))


@device_function
def _count(counts, losses, logit, largest, weighed):
    """Count one logit into the histogram of a block; 1 where it belongs to the last bucket, which each thread counts for itself.
    weighed: what it weighs is asked for too."""
    scaled = (largest - logit) * PER_UNIT
    last = i32(0)
    if scaled < f32(BUCKETS - 1):
        bucket = i32(scaled)
        cuda.atomic.add(counts, bucket, i32(1))
        if weighed:
            # 1 - exp(-x) of x below 1/64, by its series.
            x = (scaled - f32(bucket)) / PER_UNIT
            loss = x - x * x * (f32(0.5) - x * f32(1.0 / 6.0))
            cuda.atomic.add(losses, bucket, i32(loss * LOSS + f32(0.5)))
    elif logit > NEG_INF:
        last = i32(1)
    return last


@kernel(writes=("histogram",), overlap=True)
def count_logits(histogram, processed, best, temperature, top_k, top_p, slot_of_row, num_rows):
    """histogram[j, 0, b] += logits of row j in bucket b; histogram[j, 1, b] += what they weigh less than the top of the bucket, for
    rows with top_p.

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
    wait_for_launches()
    let_next_launch_start()
    tid, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    begin, end = part_of(i32(processed.shape[1]), cuda.blockIdx.y, cuda.gridDim.y)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        largest = best_of_row(best, row) if searched(slot, temperature, top_k, top_p) else NEG_INF
        if largest > NEG_INF:
            weighed = top_p[slot] < f32(1.0)
            b = tid
            while b < BUCKETS:
                counts[b] = i32(0)
                losses[b] = i32(0)
                b += threads
            cuda.syncthreads()
            last = i32(0)
            i = i32(begin + tid)
            while i + i32(AT_ONCE - 1) * threads < end:
                v0, v1, v2, v3 = four_of(processed, row, i, threads)
                last += _count(counts, losses, v0, largest, weighed)
                last += _count(counts, losses, v1, largest, weighed)
                last += _count(counts, losses, v2, largest, weighed)
                last += _count(counts, losses, v3, largest, weighed)
                i += i32(AT_ONCE) * threads
            while i < end:
                last += _count(counts, losses, processed[row, u64(i)], largest, weighed)
                i += threads
            if last > i32(0):
                cuda.atomic.add(counts, BUCKETS - 1, last)
            cuda.syncthreads()
            b = tid
            while b < BUCKETS:
                if counts[b] > i32(0):
                    cuda.atomic.add(histogram, (i32(row), i32(0), i32(b)), counts[b])
                    if weighed:
                        cuda.atomic.add(histogram, (i32(row), i32(1), i32(b)), losses[b])
                b += threads
            cuda.syncthreads()
