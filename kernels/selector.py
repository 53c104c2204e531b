"""DFlash2's candidate selector: scores of every pair of neighbouring candidates, and a walk along the best ones."""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import widen
from kernels.lang_warp import lane, warp_max, warp_size, warp_sum
from kernels.project import divide
from kernels.random import draft_gumbel

_NEAR = 8192
"""Scores of a lattice that fit into shared memory."""

_NEAR_IDS = 1024
"""Candidates of a request that do."""


@kernel(writes=("scores",), overlap=True)
def edge_scores(scores, ids, values, gate, predecessors, successors, block_ids, picks, num_rows):
    """scores[j, a, b] = values[j, b] + sum over rho of predecessors[p, rho] * gate[j, rho] * successors[ids[j, b], rho].

    Row j is pick j % picks of its request. p is candidate a of the row before it; for the first pick of a request it is the
    anchor, and only a = 0 is written.

    Args:
        scores: float32 [J, K, K].
        ids, values: int32, float32 [J, K] (kernels/candidates.py): the candidates and their logits.
        gate: float32 [J, rank], the projection of the row's hidden state.
        predecessors, successors: [V, rank], any storage type.
        block_ids: int32 [R * (1 + picks)] (kernels/block_inputs.py): the anchor of request r is at r * (1 + picks).
        picks: int32, k, picks of a request.
        num_rows: int32 [1], live rows.

    Launch: grid (rows, n), n = K at best: a block a predecessor, a warp a pair, lanes along the rank. A warp owns its score. No
    barrier; safe under capture. Oracle: oracle_dflash.edge_scores.
    """
    wait_for_launches()
    let_next_launch_start()
    count, rank = i32(ids.shape[1]), i32(gate.shape[1])
    last = i32(predecessors.shape[0]) - i32(1)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_rows[0]:
        request = divide(row, picks)
        is_first = row == request * picks
        sources = i32(1) if is_first else count
        a = i32(cuda.blockIdx.y)
        while a < sources:
            previous = block_ids[request * (picks + i32(1))] if is_first else ids[row - i32(1), a]
            # The anchor of a row that proposes nothing may be any number; its scores are thrown away.
            previous = min(max(previous, i32(0)), last)
            b = i32(warp)
            while b < count:
                candidate = ids[row, b]
                total = f32(0.0)
                for i in range(lane(), rank, warp_size()):
                    total += widen(predecessors[previous, i]) * gate[row, i] * widen(successors[candidate, i])
                total = warp_sum(total)
                if lane() == i32(0):
                    scores[row, a, b] = values[row, b] + total
                b += warps
            a += i32(cuda.gridDim.y)
        row += i32(cuda.gridDim.x)


@kernel(writes=("draft_tokens", "num_draft", "q_ids", "q_probs"), overlap=True)
def selector_walk(
    draft_tokens,
    num_draft,
    q_ids,
    q_probs,
    ids,
    scores,
    context_lens,
    block_lens,
    finished,
    idx_mapping,
    num_sampled,
    temperature,
    seed,
    num_requests,
):
    """Drafts of each request along its candidates, from the anchor on, each given the one before it.

    temperature 0: the candidate with the best score; the first of equal ones, and NaN is never one (a row of NaN yields its first
    candidate). Else one drawn from softmax(scores / temperature): the best of scores / temperature + Gumbel noise, which hangs on
    seed, position and token alone.

    draft_tokens int32 [N, k] out: of the rows of the block that stand below max_model_len, -1 behind them.
    num_draft    int32 [N] out: 0..k.
    q_ids        int32 [N, k, K] out;  q_probs float32 [N, k, K] out: what draft i was drawn from, -1 and 0 where no candidate is.
    ids          int32 [J, K], J = R * k;  scores float32 [J, K, K] (`edge_scores`), [0, :] alone of the first row of a request
    context_lens, block_lens int32 [R] (kernels/block_inputs.py): draft i stands at context + 1 + i
    finished     int32 [N] by slot;  idx_mapping int32 [R] row -> slot;  num_sampled int32 [R] after `advance`
    temperature  float32 [N];  seed int32 [N, 2];  num_requests int32 [1].

    A row that emitted nothing (it is still in its prompt) or is finished gets no drafts: its slot is cleared, so that no draft of
    an earlier step survives.

    Launch: a block a request; its first warp walks, lanes over the candidates, the others bring the scores closer. Block `r` owns
    the slot of request r; its barrier is reached by all its threads. Safe under capture. Oracle: oracle_dflash.selector_walk.
    Method: ancestral walk, no beam.
    """
    near = cuda.shared.array(_NEAR, f32)
    near_ids = cuda.shared.array(_NEAR_IDS, i32)
    wait_for_launches()
    let_next_launch_start()
    tid, threads, warp = i32(cuda.threadIdx.x), i32(cuda.blockDim.x), divide(cuda.threadIdx.x, warp_size())
    slots, picks, count = i32(draft_tokens.shape[0]), i32(draft_tokens.shape[1]), i32(ids.shape[1])
    lattice = picks * count * count
    for request in range(cuda.blockIdx.x, num_requests[0], cuda.gridDim.x):
        slot = idx_mapping[request]
        if slot >= i32(0) and slot < slots:
            base = i32(request) * picks
            if lattice <= i32(_NEAR):
                item = tid
                while item < lattice:  # two at a time: their loads are under way together
                    other = min(item + threads, lattice - i32(1))
                    here, there = score_at(scores, base, item), score_at(scores, base, other)
                    near[item] = here
                    near[other] = there
                    item += i32(2) * threads
            item = tid
            while item < min(picks * count, i32(_NEAR_IDS)):
                pick = divide(item, count)
                near_ids[item] = ids[base + pick, item - pick * count]
                item += threads
            cuda.syncthreads()
            drafts = i32(0)
            if num_sampled[request] > i32(0) and finished[slot] == i32(0):
                drafts = max(min(picks, block_lens[request] - i32(1)), i32(0))
            if warp == i32(0):
                before, heat = i32(0), temperature[slot]
                for step in range(picks):
                    row = base + i32(step)
                    if step < drafts:
                        position = context_lens[request] + i32(1) + i32(step)
                        place = i32(step)
                        before = choose(
                            q_ids, q_probs, slot, place, ids, near_ids, scores, near, lattice, row, before, heat, seed, position
                        )
                        if lane() == i32(0):
                            draft_tokens[slot, step] = id_of(ids, near_ids, row, place, before)
                    else:
                        for candidate in range(lane(), count, warp_size()):
                            q_ids[slot, step, candidate] = i32(-1)
                            q_probs[slot, step, candidate] = f32(0.0)
                        if lane() == i32(0):
                            draft_tokens[slot, step] = i32(-1)
                if lane() == i32(0):
                    num_draft[slot] = drafts
            cuda.syncthreads()


@device_function
def score_at(scores, base, item):
    """Element `item` of the scores of a request, whose rows begin at `base`."""
    count = i32(scores.shape[1])
    pair = divide(item, count)
    row = divide(pair, count)
    return scores[base + row, pair - row * count, item - pair * count]


@device_function
def score_of(scores, near, lattice, row, step, before, candidate):
    """The score behind candidate `before`, -inf for NaN; from shared memory where the lattice fits there."""
    count = i32(scores.shape[1])
    value = near[(step * count + before) * count + candidate] if lattice <= i32(_NEAR) else scores[row, before, candidate]
    if value > NEG_INF:
        return value
    return f32(NEG_INF)


@device_function
def id_of(ids, near_ids, row, step, candidate):
    """Token of a candidate, from shared memory where those of the request fit there."""
    at = step * i32(ids.shape[1]) + candidate
    if at < i32(_NEAR_IDS):
        return near_ids[at]
    return ids[row, candidate]


@device_function
def choose(q_ids, q_probs, slot, step, ids, near_ids, scores, near, lattice, row, before, temperature, seed, position):
    """Place of the candidate of `row` that is chosen behind `before`, with what it was drawn from. Called by a whole warp."""
    count = i32(ids.shape[1])
    largest = NEG_INF
    for candidate in range(lane(), count, warp_size()):
        largest = max(largest, score_of(scores, near, lattice, row, step, before, candidate))
    largest = warp_max(largest)
    best, place, total = NEG_INF, count, f32(0.0)
    for candidate in range(lane(), count, warp_size()):
        score = score_of(scores, near, lattice, row, step, before, candidate)
        if score > NEG_INF:
            value = score
            if temperature > f32(0.0):
                value = f32(score - largest) / temperature
                total += exp(value)
                token = id_of(ids, near_ids, row, step, i32(candidate))
                value += draft_gumbel(seed[slot, 0], seed[slot, 1], position, step, token)
            if value > best:
                best, place = value, i32(candidate)
    top = largest
    if temperature > f32(0.0):
        total, top = warp_sum(total), warp_max(best)
    if best < top:
        place = count
    place = i32(-warp_max(i32(-place)))
    if place >= count:
        place = i32(0)
    for candidate in range(lane(), count, warp_size()):
        score = score_of(scores, near, lattice, row, step, before, candidate)
        token, share = i32(-1), f32(0.0)
        if temperature > f32(0.0) and total > f32(0.0):
            if score > NEG_INF:
                token, share = id_of(ids, near_ids, row, step, i32(candidate)), exp(f32(score - largest) / temperature) / total
        elif candidate == place:
            token, share = id_of(ids, near_ids, row, step, i32(candidate)), f32(1.0)
        q_ids[slot, step, candidate] = token
        q_probs[slot, step, candidate] = share
    return place
