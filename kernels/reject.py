"""Stochastic verification: how many drafts of each request are kept, so that what is emitted is a sample of the target.

Standard verification (Leviathan et al. 2023; Chen et al. 2023) keeps a draft d iff p(d) > u q(d). Block verification (Sun et al.
2024, "Block verification accelerates speculative decoding") decides on all drafts of a block together and never keeps fewer on
average. Both then draw one more token: from the target's p behind the last draft, or from the residual max(s p - q, 0), where s is
1 for standard verification and the block's own factor for block verification (kernels/reject_residual.py).
"""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches

MAX_DRAFTS = 64
"""Drafts of a block at most."""

STANDARD, BLOCK = 0, 1
"""Values of `verification`."""


@device_function
def probability(processed, row, token, floor, log_sum):
    """p(token) of a row of logits; 0 for a token outside the vocabulary, and for a logit below `floor` or NaN."""
    p = f32(0.0)
    if token >= i32(0) and token < i32(processed.shape[1]) and processed[row, token] >= floor:
        p = exp(processed[row, token] - log_sum)
    return p


@device_function
def draft_probability(draft_ids, draft_probs, slot, i, token):
    """q(token) of draft i of a slot; 0 outside its candidates."""
    q = f32(0.0)
    for c in range(draft_ids.shape[2]):
        if draft_ids[slot, i, c] == token:
            q = draft_probs[slot, i, c]
    return q


@device_function
def residual_mass(processed, row, floor, log_sum, draft_ids, draft_probs, slot, i, scale):
    """Sum over the vocabulary of max(scale p - q, 0): all of p but the candidates at once, then the candidates one by one."""
    covered = f32(0.0)
    mass = f32(0.0)
    for c in range(draft_ids.shape[2]):
        token = i32(draft_ids[slot, i, c])
        if token >= i32(0):
            p = probability(processed, row, token, floor, log_sum)
            covered += p
            mass += max(f32(scale * p - draft_probs[slot, i, c]), f32(0.0))
    return f32(mass + scale * max(f32(f32(1.0) - covered), f32(0.0)))


@device_function
def share_of_mass(mass, whole):
    """mass / whole, 0 of no mass, 1 where rounding has left nothing of the whole."""
    share = f32(0.0)
    if mass > f32(0.0):
        share = f32(mass / whole) if whole > f32(0.0) else f32(1.0)
    return share


@kernel(writes=("num_accepted", "scale", "residual", "num_drafts"), overlap=True)
def accept_drafts(
    num_accepted,
    scale,
    residual,
    num_drafts,
    processed,
    threshold,
    log_sum,
    row_argmax,
    uniforms,
    input_ids,
    logits_indices,
    cu_num_logits,
    draft_ids,
    draft_probs,
    temperature,
    idx_mapping,
    verification,
    num_requests,
):
    """Drafts of each request that are kept, and what the token behind them is drawn from.

    num_accepted int32 [R] out: 0..k_r; -1 for a row without logits.
    scale        float32 [R] out: the s of the residual.
    residual     int32 [R] out: 1 where a draft was rejected: the next token comes from the residual of its row; 0: from p.
    num_drafts   int32 [R] out: drafts >= 0 among the k_r.
    processed float32 [J, V];  threshold float32 [J], >= -1e30: logits below it are masked
    log_sum float32 [J], row_argmax int32 [J], uniforms float32 [J] of kernels.reject_rows.sum_rows
    input_ids int32 [T] after the combine;  logits_indices int32 [J];  cu_num_logits int32 [R + 1]
    draft_ids int32 [N, k, K], draft_probs float32 [N, k, K]: q of draft i on its candidates, 0 elsewhere; -1 = no candidate
    temperature float32 [N];  idx_mapping int32 [R];  verification int32: STANDARD or BLOCK;  num_requests int32 [1]

    Draft i of request r is input_ids[logits_indices[cu[r] + 1 + i]], decided on by row cu[r] + i. A draft that is -1, outside the
    vocabulary or none of its own candidates is no draft: it ends the block and the token there comes from p. Requests at
    temperature 0 keep drafts while they are the argmax of their rows. Comparisons are strict, so that NaN keeps nothing.

    Launch: a block a request, threads over its drafts (block 32); any grid and block is right. Block r owns row r; barriers are
    reached by all its threads. Capture safe. Oracle: oracle_sampling.accept_drafts.
    """
    p_of = cuda.shared.array(MAX_DRAFTS, f32)
    q_of = cuda.shared.array(MAX_DRAFTS, f32)
    kept_of = cuda.shared.array(MAX_DRAFTS, f32)
    length_of = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    first, step = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    for row in range(cuda.blockIdx.x, num_requests[0], cuda.gridDim.x):
        base = i32(cu_num_logits[row])
        drafts = min(i32(cu_num_logits[row + i32(1)]) - base - i32(1), i32(MAX_DRAFTS))
        slot = i32(idx_mapping[row])
        known = slot >= i32(0) and slot < i32(temperature.shape[0])
        drawn = known and temperature[max(slot, i32(0))] > f32(0.0)
        for i in range(first, drafts, step):
            token = i32(input_ids[logits_indices[base + i32(i) + i32(1)]])
            p_of[i] = f32(0.0)
            q_of[i] = f32(0.0)
            if drawn and i < draft_ids.shape[1] and token >= i32(0) and token < i32(processed.shape[1]):
                at = base + i32(i)
                p_of[i] = probability(processed, at, token, threshold[at], log_sum[at])
                q_of[i] = draft_probability(draft_ids, draft_probs, slot, i, token)
        cuda.syncthreads()
        if first == i32(0):
            # kept_of[i]: the probability with which drafts 0..i are kept together, 1 and below (block verification's p_i).
            length = i32(0)
            kept = f32(1.0)
            while length < drafts and q_of[length] > f32(0.0):
                kept = min(f32(kept * p_of[length] / q_of[length]), f32(1.0))
                kept_of[length] = kept
                length += i32(1)
            length_of[0] = length
        cuda.syncthreads()
        length = length_of[0]
        if verification == i32(BLOCK):
            # q_of[i] becomes the probability with which the block ends behind draft i rather than earlier.
            for i in range(first, length, step):
                kept = kept_of[i]
                ends = kept
                if i + i32(1) < length:
                    at = base + i32(i) + i32(1)
                    mass = residual_mass(processed, at, threshold[at], log_sum[at], draft_ids, draft_probs, slot, i + 1, kept)
                    ends = share_of_mass(mass, f32(mass + f32(1.0) - kept))
                q_of[i] = ends
        cuda.syncthreads()
        if first == i32(0):
            accepted = i32(0)
            factor = f32(1.0)
            if not drawn:
                walking = accepted < drafts
                while walking:
                    draft = i32(input_ids[logits_indices[base + accepted + i32(1)]])
                    walking = draft >= i32(0) and draft == row_argmax[base + accepted]
                    if walking:
                        accepted += i32(1)
                        walking = accepted < drafts
            elif verification == i32(BLOCK):
                for i in range(length):
                    if uniforms[base + i] < q_of[i]:
                        accepted = i32(i) + i32(1)
                        factor = kept_of[i]
            else:
                while accepted < length and p_of[accepted] > uniforms[base + accepted] * q_of[accepted]:
                    accepted += i32(1)
            drafted = i32(0)
            for i in range(drafts):
                if input_ids[logits_indices[base + i32(i) + i32(1)]] >= i32(0):
                    drafted += i32(1)
            num_accepted[row] = accepted if drafts >= i32(0) else i32(-1)
            scale[row] = factor
            residual[row] = i32(1) if drawn and accepted < length else i32(0)
            num_drafts[row] = drafted
        cuda.syncthreads()
