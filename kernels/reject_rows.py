"""What verification needs to know of a row of logits: the logarithm of its softmax's denominator, and its largest column."""

from __future__ import annotations

import math

from kernels.argmax import float_of_order, float_order
from kernels.block_reduce import block_best, block_total, warp_of_grid, warps_of_grid
from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, cuda, f32, i32, kernel, u64
from kernels.lang_warp import lane, warp_size, warp_sum
from kernels.random import accept_uniform
from kernels.sample import NO_COLUMN, best_of_row

_LOWEST = i32(-2147483648)


@kernel(writes=("stripe_max", "stripe_sum", "stripe_column"))
def sum_stripes(stripe_max, stripe_sum, stripe_column, processed, stripe_width, num_rows):
    """Of stripe s of row j: the largest logit, the sum of exp(logit - largest), and the lowest column of the largest.

    stripe_max, stripe_sum float32 [S, J] out: -inf and 0 for a stripe with nothing above -inf.   stripe_column int32 [S, J] out:
    NO_COLUMN there.   processed float32 [J, V], masked tokens and NaN count as nothing.   stripe_width int32: columns of a stripe.
    num_rows int32 [1] live rows.

    Launch: grid (J, S), threads over the columns of a stripe; a block owns its stripes, barriers are reached by all its threads.
    The order of the sum depends on the block size alone. Capture safe. Oracle: oracle_sampling.sum_stripes.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    vocab_size = i32(processed.shape[1])
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        for stripe in range(cuda.blockIdx.y, stripe_max.shape[0], cuda.gridDim.y):
            begin = i32(stripe) * stripe_width
            end = min(begin + stripe_width, vocab_size)
            order = i32(_LOWEST)
            for column in range(begin + i32(cuda.threadIdx.x), end, i32(cuda.blockDim.x)):
                order = max(order, float_order(processed[row, u64(column)]))
            largest, _ = block_best(float_of_order(order), NO_COLUMN, scratch, columns)
            total = f32(0.0)
            chosen = NO_COLUMN
            if largest > NEG_INF:
                for column in range(begin + i32(cuda.threadIdx.x), end, i32(cuda.blockDim.x)):
                    logit = processed[row, u64(column)]
                    if logit > NEG_INF:
                        total += exp(logit - largest)
                    if logit == largest:
                        chosen = min(chosen, i32(column))
            total = block_total(total, scratch)
            found = largest if chosen != NO_COLUMN else NEG_INF
            _, lowest = block_best(found, chosen, scratch, columns)
            if cuda.threadIdx.x == 0:
                stripe_max[stripe, row] = largest
                stripe_sum[stripe, row] = total
                stripe_column[stripe, row] = lowest


@kernel(writes=("log_sum", "row_argmax", "degenerate", "uniforms"))
def sum_rows(
    log_sum,
    row_argmax,
    degenerate,
    uniforms,
    stripe_max,
    stripe_sum,
    stripe_column,
    seed,
    token_slot,
    positions,
    logits_indices,
    local_position,
    num_rows,
):
    """Stripes of a row together, and the number that decides on the draft behind the row.

    log_sum    float32 [J] out: log of the sum of exp(logit): p = exp(logit - log_sum); -inf for a row of nothing.
    row_argmax int32 [J] out: the lowest column of the largest logit; 0 for a row of nothing.
    degenerate int32 [J] out: 1 for a row of nothing (all NaN or -inf), else 0.
    uniforms   float32 [J] out: in (0, 1), of the request's seed, the position behind the row, and the start of the block.
    stripe_max, stripe_sum float32 [S, J], stripe_column int32 [S, J]: of `sum_stripes`.   seed int32 [N, 2].
    token_slot, positions int32 [T];  logits_indices int32 [J];  local_position int32 [J]: place of the row in its block.
    num_rows int32 [1] live rows.

    Launch: a warp a row (grid J, block 32), any grid of whole warps. No barrier. Capture safe. Oracle: oracle_sampling.sum_rows.
    """
    for row in range(warp_of_grid(), num_rows[0], warps_of_grid()):
        largest, column = best_of_row(stripe_max, stripe_column, row)
        total = f32(0.0)
        for stripe in range(lane(), stripe_max.shape[0], warp_size()):
            if stripe_max[stripe, row] > NEG_INF:
                total += stripe_sum[stripe, row] * exp(stripe_max[stripe, row] - largest)
        total = warp_sum(total)
        if lane() == i32(0):
            nothing = column == NO_COLUMN
            log_sum[row] = NEG_INF if nothing else f32(largest + f32(math.log(total)))
            row_argmax[row] = i32(0) if nothing else column
            degenerate[row] = i32(1) if nothing else i32(0)
            at = i32(logits_indices[row])
            slot = max(i32(token_slot[at]), i32(0))
            uniforms[row] = accept_uniform(seed[slot, 0], seed[slot, 1], positions[at] + i32(1), local_position[row])
