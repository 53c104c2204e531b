"""DFlash2's candidate selector: scores of every pair of neighbouring candidates, and a walk along the best ones."""

from __future__ import annotations

from kernels.lang import NEG_INF, cuda, f32, i32, kernel
from kernels.lang_storage import widen
from kernels.lang_warp import lane, warp_max, warp_size, warp_sum
from kernels.project import divide


@kernel(writes=("scores",))
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


@kernel(writes=("chosen",))
def selector_walk(chosen, ids, scores, picks, num_requests):
    """chosen[j] = the candidate of row j with the best score behind the one chosen for the row before, from the anchor on.

    The first of equal scores wins; NaN never does (a row of NaN yields its first candidate).

    Args:
        chosen: int32 [J], J = R * picks.
        ids: int32 [J, K].
        scores: float32 [J, K, K] (`edge_scores`); of the first row of a request only [0, :] is read.
        picks: int32, rows of a request.
        num_requests: int32 [1], live requests.

    Launch: a warp a request, lanes over its candidates; any grid. A warp owns the rows of its request. No barrier; safe under
    capture. Oracle: oracle_dflash.selector_walk. Method: ancestral walk at temperature 0, no beam.
    """
    count = i32(ids.shape[1])
    warps = max(divide(cuda.blockDim.x, warp_size()), i32(1))
    request = i32(cuda.blockIdx.x * warps + divide(cuda.threadIdx.x, warp_size()))
    while request < num_requests[0]:
        before = i32(0)
        for step in range(picks):
            row = i32(request * picks + step)
            score = NEG_INF
            place = count
            for candidate in range(lane(), count, warp_size()):
                if scores[row, before, candidate] > score:
                    score = scores[row, before, candidate]
                    place = i32(candidate)
            best = warp_max(score)
            if score < best:
                place = count
            before = i32(-warp_max(i32(-place)))
            if before >= count:
                before = i32(0)
            if lane() == i32(0):
                chosen[row] = ids[row, before]
        request += i32(cuda.gridDim.x * warps)
