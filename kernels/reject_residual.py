"""The token that stochastic verification draws itself: behind the drafts that were kept, or in the place of one that was not."""

from __future__ import annotations

import math

from kernels.argmax import NO_TOKEN
from kernels.block_reduce import block_best, warp_of_grid, warps_of_grid
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_max
from kernels.project import ceil_div
from kernels.random import QUARTER, ROLE_RESIDUAL, ROLE_TOKEN, TILE, high_words, unsigned
from kernels.reject import draft_probability
from kernels.sample import NO_COLUMN, NOTHING, best_of_row, drawn, foremost, leading_tile, may_win, reaches_of_call, without


@device_function
def residual_logit(logit, log_sum, scale, q):
    """log(max(p - q / scale, 0)) + log_sum with p = exp(logit - log_sum): a logit of the residual max(scale p - q, 0)."""
    value = logit
    if q > f32(0.0):
        # As a share of p, so that a p that is too small for a float32 is still compared.
        share = f32(f32(q / scale) * f32(math.exp(log_sum - logit)))
        value = NEG_INF
        if share < f32(1.0):
            value = f32(logit + f32(math.log1p(f32(-share))))
    return value


@kernel(writes=("best_score", "best_column"), overlap=True)
def residual_stripes(
    best_score,
    best_column,
    processed,
    threshold,
    log_sum,
    num_accepted,
    scale,
    residual,
    draft_ids,
    draft_probs,
    temperature,
    seed,
    positions,
    logits_indices,
    cu_num_logits,
    idx_mapping,
    tiles_per_stripe,
    num_requests,
):
    """The race of kernels/sample.py for one row of each request: that behind its last kept draft, in the residual where one was
    rejected there.

    best_score float32 [S, >= R] out: -inf where nothing is above -inf.   best_column int32 [S, >= R] out: NO_COLUMN there.
    processed float32 [J, V];  threshold float32 [J], >= -1e30: logits below it are masked;  log_sum float32 [J]
    num_accepted, residual int32 [R], scale float32 [R] of accept_drafts
    draft_ids int32 [N, k, K], draft_probs float32 [N, k, K];  temperature float32 [N];  seed int32 [N, 2]
    positions int32 [T];  logits_indices int32 [J];  cu_num_logits int32 [R + 1];  idx_mapping int32 [R]
    tiles_per_stripe int32;  num_requests int32 [1]

    A residual's logits are at most those of its row, so the bounds of the row's own race hold. Its random numbers are apart from
    those of tokens that come from p.

    Launch: grid (R, S), whole warps over the columns of a tile. A block owns its stripes; barriers are reached by all its threads.
    Capture safe. Oracle: oracle_sampling.residual_logits, then race_stripes of it.
    """
    values = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    wait_for_launches()
    let_next_launch_start()
    vocab_size = i32(processed.shape[1])
    tiles = ceil_div(vocab_size, i32(TILE))
    first, step = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    for request in range(cuda.blockIdx.x, num_requests[0], cuda.gridDim.x):
        accepted = i32(num_accepted[request])
        slot = i32(idx_mapping[request])
        row = i32(cu_num_logits[request]) + max(accepted, i32(0))
        live = accepted >= i32(0) and slot >= i32(0) and slot < i32(temperature.shape[0])
        at = i32(0)
        if live:
            at = i32(logits_indices[row])
        slot = max(slot, i32(0))
        noisy = live and temperature[slot] > f32(0.0)
        rejected = residual[request] > i32(0)
        role = unsigned(i32(ROLE_RESIDUAL)) if rejected else unsigned(i32(ROLE_TOKEN))
        k0, k1 = unsigned(seed[slot, 0]), unsigned(seed[slot, 1])
        position = unsigned(positions[at] + i32(1))
        floor = threshold[row] if live else f32(0.0)
        for stripe in range(cuda.blockIdx.y, best_score.shape[0], cuda.gridDim.y):
            value, bar = NEG_INF, NEG_INF
            chosen = NO_COLUMN
            begin = min(i32(stripe) * tiles_per_stripe, tiles)
            end = min(begin + tiles_per_stripe, tiles) if live else begin
            bound, leader, rest = leading_tile(
                processed, row, begin, end, first, step, vocab_size, floor, noisy, position, role, k0, k1
            )
            top = warp_max(bound)
            if top > NOTHING:
                for turn in range(3):
                    calls = i32(QUARTER) if may_win(turn, bound, rest, top, bar) else i32(0)
                    tile, behind = (leader, leader + i32(1)) if turn < 2 else (begin, end)
                    while tile < behind:
                        n = first
                        while n < min(calls, vocab_size - tile * i32(TILE)):
                            call, start = tile * i32(QUARTER) + n, tile * i32(TILE)
                            highs = high_words(call, position, role, k0, k1)
                            reaches = reaches_of_call(processed, row, start, n, vocab_size, floor, noisy, highs)
                            top_reach, which = foremost(reaches)
                            while top_reach >= max(bar, value) and top_reach > NEG_INF:
                                column = start + which * i32(QUARTER) + n
                                score = processed[row, u64(column)]
                                if rejected:
                                    q = draft_probability(draft_ids, draft_probs, slot, accepted, column)
                                    score = residual_logit(score, log_sum[row], scale[request], q)
                                if noisy and score > NEG_INF:
                                    score = drawn(score, highs, which, call, position, role, k0, k1)
                                if score > value or (score == value and column < chosen and score > NEG_INF):
                                    value = score
                                    chosen = column
                                reaches = without(reaches, which)
                                top_reach, which = foremost(reaches)
                            n += step
                        tile += i32(1)
                    bar = warp_max(value)
            largest, lowest = block_best(value, chosen, values, columns)
            if cuda.threadIdx.x == 0:
                best_score[stripe, request] = largest
                best_column[stripe, request] = lowest


@kernel(writes=("sampled", "num_sampled"), overlap=True)
def emit_drawn(
    sampled,
    num_sampled,
    num_accepted,
    best_score,
    best_column,
    row_argmax,
    input_ids,
    logits_indices,
    cu_num_logits,
    history,
    total_len,
    idx_mapping,
    num_requests,
):
    """The drafts that were kept, then the token that was drawn; or the one that the history knows already.

    sampled     int32 [R, W] out: -1 behind the emitted ids.   num_sampled int32 [R] out: num_accepted + 1; 0 without logits.
    num_accepted int32 [R];  best_score float32 [S, >= R], best_column int32 [S, >= R] of residual_stripes
    row_argmax int32 [J] of sum_rows: stands in where a residual has nothing left, which is rounding. A row that itself has
        nothing emits NO_TOKEN (kernels/argmax.py), be it that of a draft that was kept or of the token behind them.
    input_ids int32 [T];  logits_indices int32 [J];  cu_num_logits int32 [R + 1]
    history int32 [N, L], total_len int32 [N] before the step: behind its end stands -1, but for a request that comes back from a
        preemption and emits its last token once more (kernels/slots.py). That token was drawn in a block, or in the place of a
        draft; drawn alone it might be another one.
    idx_mapping int32 [R];  num_requests int32 [1]

    Launch: a warp a request (grid R, block 32), any grid of whole warps. No barrier. Capture safe. Oracle:
    oracle_sampling.emit_drawn.
    """
    wait_for_launches()
    let_next_launch_start()
    width = i32(sampled.shape[1])
    for request in range(warp_of_grid(), num_requests[0], warps_of_grid()):
        base = i32(cu_num_logits[request])
        accepted = min(i32(num_accepted[request]), width - i32(1))
        _, token = best_of_row(best_score, best_column, request)
        if lane() == i32(0):
            for i in range(accepted):
                kept = i32(input_ids[logits_indices[base + i32(i) + i32(1)]])
                sampled[request, i] = NO_TOKEN if row_argmax[base + i] < i32(0) else kept
            if accepted >= i32(0):
                sampled[request, accepted] = row_argmax[base + accepted] if token == NO_COLUMN else token
            slot = i32(idx_mapping[request])
            if slot >= i32(0) and slot < i32(history.shape[0]):
                end = i32(total_len[slot])
                if accepted == i32(0) and end < i32(history.shape[1]) and history[slot, end] >= i32(0):
                    sampled[request, 0] = history[slot, end]
            for i in range(accepted + i32(1), width):
                sampled[request, i] = i32(-1)
            num_sampled[request] = accepted + i32(1)
