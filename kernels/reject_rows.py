"""What verification needs to know of a row of logits: the logarithm of its softmax's denominator, and its largest column."""

from __future__ import annotations

import math

from kernels.argmax import NO_TOKEN, float_of_order, float_order
from kernels.block_reduce import block_best, block_total, warp_of_grid, warps_of_grid
from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_size, warp_sum
from kernels.project import ceil_div
from kernels.random import accept_uniform
from kernels.sample import NO_COLUMN, best_of_row

_LOWEST = i32(-2147483648)


@device_function
def _order(logit, floor):
    """float_order of a logit; lowest for NaN and below `floor`."""
    return float_order(logit) if logit >= floor else i32(_LOWEST)


@device_function
def _weight(logit, floor, largest):
    return exp(logit - largest) if logit >= floor else f32(0.0)


@device_function
def _four(processed, row, column, step):
    """Four columns of a thread, loaded before the first is used: a GPU waits once for all of them."""
    v0, v1 = processed[row, u64(column)], processed[row, u64(column + step)]
    v2, v3 = processed[row, u64(column + i32(2) * step)], processed[row, u64(column + i32(3) * step)]
    return v0, v1, v2, v3


@kernel(writes=("stripe_max", "stripe_sum", "stripe_column"), overlap=True, max_registers=48)
def sum_stripes(stripe_max, stripe_sum, stripe_column, processed, threshold, stripe_width, num_rows):
    """Of stripe s of row j: the largest logit, the sum of exp(logit - largest), and the lowest column of the largest.

    stripe_max, stripe_sum float32 [S, J] out: -inf and 0 for a stripe with nothing above -inf.   stripe_column int32 [S, J] out:
    NO_COLUMN there.   processed float32 [J, V].   threshold float32 [J], >= -1e30: what lies below it, and NaN, counts as nothing.
    stripe_width int32: columns of a stripe.   num_rows int32 [1] live rows.

    Launch: grid (J, S), threads over the columns of a stripe; a block owns its stripes, barriers are reached by all its threads.
    The order of the sum depends on the block size alone. Capture safe. Oracle: oracle_sampling.sum_stripes.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    wait_for_launches()
    let_next_launch_start()
    vocab_size, step = i32(processed.shape[1]), i32(cuda.blockDim.x)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        floor = threshold[row]
        for stripe in range(cuda.blockIdx.y, stripe_max.shape[0], cuda.gridDim.y):
            begin = i32(stripe) * stripe_width + i32(cuda.threadIdx.x)
            end = min(i32(stripe + 1) * stripe_width, vocab_size)
            # A single thread, which is a CPU's, takes all columns one by one: that is what its compiler vectorises.
            whole = end - i32(3) * step if step > i32(1) else begin
            order, rest = i32(_LOWEST), begin
            while rest < whole:
                v0, v1, v2, v3 = _four(processed, row, rest, step)
                order = max(order, max(max(_order(v0, floor), _order(v1, floor)), max(_order(v2, floor), _order(v3, floor))))
                rest += i32(4) * step
            count = ceil_div(max(end - rest, i32(0)), step)
            for nth in range(count):
                order = max(order, _order(processed[row, u64(rest + i32(nth) * step)], floor))
            largest, _ = block_best(float_of_order(order), NO_COLUMN, scratch, columns)
            total = f32(0.0)
            chosen = NO_COLUMN
            if largest > NEG_INF:
                rest = begin
                while rest < whole:
                    v0, v1, v2, v3 = _four(processed, row, rest, step)
                    total += _weight(v0, floor, largest)
                    total += _weight(v1, floor, largest)
                    total += _weight(v2, floor, largest)
                    total += _weight(v3, floor, largest)
                    for nth in range(4):
                        if (v0 if nth == 0 else v1 if nth == 1 else v2 if nth == 2 else v3) == largest:
                            chosen = min(chosen, rest + i32(nth) * step)
                    rest += i32(4) * step
                for nth in range(count):
                    column = rest + i32(nth) * step
                    logit = processed[row, u64(column)]
                    total += _weight(logit, floor, largest)
                    if logit == largest:
                        chosen = min(chosen, column)
            total = block_total(total, scratch)
            found = largest if chosen != NO_COLUMN else NEG_INF
            _, lowest = block_best(found, chosen, scratch, columns)
            if cuda.threadIdx.x == 0:
                stripe_max[stripe, row] = largest
                stripe_sum[stripe, row] = total
                stripe_column[stripe, row] = lowest


@kernel(writes=("log_sum", "row_argmax", "uniforms"), overlap=True)
def sum_rows(
    log_sum,
    row_argmax,
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
    row_argmax int32 [J] out: the lowest column of the largest logit; NO_TOKEN for a row of nothing (kernels/argmax.py).
    uniforms   float32 [J] out: in (0, 1), of the request's seed, the position behind the row, and the start of the block.
    stripe_max, stripe_sum float32 [S, J], stripe_column int32 [S, J]: of `sum_stripes`.   seed int32 [N, 2].
    token_slot, positions int32 [T];  logits_indices int32 [J];  local_position int32 [J]: place of the row in its block.
    num_rows int32 [1] live rows.

    Launch: a warp a row (grid J, block 32), any grid of whole warps. No barrier. Capture safe. Oracle: oracle_sampling.sum_rows.
    """
    wait_for_launches()
    let_next_launch_start()
    for row in range(warp_of_grid(), num_rows[0], warps_of_grid()):
        largest, column = best_of_row(stripe_max, stripe_column, row)
        total = f32(0.0)
        stripe = lane()
        while stripe < i32(stripe_max.shape[0]):
            if stripe_max[stripe, row] > NEG_INF:
                total += stripe_sum[stripe, row] * exp(stripe_max[stripe, row] - largest)
            stripe += warp_size()
        total = warp_sum(total)
        if lane() == i32(0):
            nothing = column == NO_COLUMN
            log_sum[row] = NEG_INF if nothing else f32(largest + f32(math.log(total)))
            row_argmax[row] = NO_TOKEN if nothing else column
            at = i32(logits_indices[row])
            slot = max(i32(token_slot[at]), i32(0))
            uniforms[row] = accept_uniform(seed[slot, 0], seed[slot, 1], positions[at] + i32(1), local_position[row])
