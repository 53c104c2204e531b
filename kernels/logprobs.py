"""Log probabilities of the tokens that a step emitted, under the model itself: before bias, penalties, masks and temperature."""

from __future__ import annotations

import math

from kernels.argmax import float_order
from kernels.block_reduce import block_total
from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, bits_of_float, block_max, cuda, f32, float_of_bits, i32, kernel, u64

MAX_LOGPROBS = 20
"""Most likely tokens that a request can ask for beside the one that was emitted."""

LOGPROB_FIELDS = 2 + 2 * MAX_LOGPROBS
"""int32 fields of a token: its log probability (bits of a float32), its rank, ids and log probabilities (bits) of the best."""

_LOWEST = i32(-2147483648)


@kernel(writes=("outcome",))
def publish_logprobs(
    outcome,
    logits,
    vocab_size,
    top_ids,
    top_values,
    sampled,
    num_sampled,
    num_logprobs,
    idx_mapping,
    cu_num_logits,
    num_requests,
):
    """outcome[0, r, i] = what row r's i-th emitted token is worth: the i-th logits row of its block decided it.

    Rank is the number of tokens that are at least as likely, so 1 for the only best, 2 for one of two best. Log probability is
    -inf where a row holds no number above -inf, or the token's logit is none.

    Args:
        outcome: int32 [1, N, W, 2 + 2 K] out, LOGPROB_FIELDS; -1 as an id where fewer than K were asked for.
        logits: float32 [J, V'], V' >= vocab_size, as the model left them.
        vocab_size: int32.
        top_ids: int32 [J, K], top_values: float32 [J, K], largest first (kernels.candidates.top_candidates).
        sampled: int32 [R, W], num_sampled: int32 [R], after advance: what the step kept.
        num_logprobs: int32 [N], -1 = none asked for, 0 = of the emitted token alone.
        idx_mapping: int32 [R], cu_num_logits: int32 [R + 1], num_requests: int32 [1].

    Rows that asked for none, and places behind num_sampled, are left as they were.

    Launch: grid (R, W), a block a token. Barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_process.publish_logprobs.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    top = i32(top_ids.shape[1])
    for row in range(cuda.blockIdx.x, num_requests[0], cuda.gridDim.x):
        slot = i32(idx_mapping[row])
        wanted = i32(-1)
        if slot >= i32(0) and slot < i32(num_logprobs.shape[0]):
            wanted = i32(num_logprobs[slot])
        kept = i32(num_sampled[row]) if wanted >= i32(0) else i32(0)
        for place in range(cuda.blockIdx.y, min(kept, i32(sampled.shape[1])), cuda.gridDim.y):
            line = i32(cu_num_logits[row]) + i32(place)
            token = i32(sampled[row, place])
            order = i32(_LOWEST)
            for i in range(tid, vocab_size, threads):
                order = max(order, float_order(logits[line, u64(i)]))
            largest = NEG_INF
            if order > _LOWEST:
                largest = float_of_bits(order if order >= i32(0) else i32(_LOWEST - order))
            best = block_max(largest, scratch)
            own = f32(math.nan)
            if token >= i32(0) and token < vocab_size:
                own = logits[line, token]
            total = f32(0.0)
            for i in range(tid, vocab_size, threads):
                share = exp(logits[line, u64(i)] - best)
                total += share if share == share else f32(0.0)
            total = block_total(total, scratch)
            # As floats the ranks are exact up to 2**24 tokens.
            rank = f32(0.0)
            for i in range(tid, vocab_size, threads):
                rank += f32(1.0) if logits[line, u64(i)] >= own else f32(0.0)
            rank = block_total(rank, scratch)
            base = f32(best + f32(math.log(total))) if best > NEG_INF else f32(0.0)
            if tid == i32(0):
                outcome[0, row, place, 0] = bits_of_float(f32(own - base) if own == own else NEG_INF)
                outcome[0, row, place, 1] = i32(rank)
            for k in range(tid, top, threads):
                outcome[0, row, place, i32(2) + k] = top_ids[line, k] if k < wanted else i32(-1)
                outcome[0, row, place, i32(2) + top + k] = bits_of_float(f32(top_values[line, k] - base)) if k < wanted else i32(0)
