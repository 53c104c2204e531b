"""DFlash2's candidate selector: scores of every pair of neighbouring candidates, and a walk along the best ones."""

from __future__ import annotations

from kernels.lang import MAX_THREADS, NEG_INF, cuda, f32, i32, kernel


@kernel(writes=("scores",))
def edge_scores(scores, ids, values, gate, predecessors, successors, block_ids, picks, num_rows):
    """scores[j, a, b] = values[j, b] + sum over rho of predecessors[p, rho] * gate[j, rho] * successors[ids[j, b], rho].

    Row j is pick j % picks of its request. p is candidate a of the row before it; for the first pick of a request it is the
    anchor, and only a = 0 is written.

    Args:
        scores: float32 [J, K, K].
        ids, values: int32, float32 [J, K] (kernels/candidates.py): the candidates and their logits.
        gate: float32 [J, rank], the projection of the row's hidden state.
        predecessors, successors: float32 [V, rank].
        block_ids: int32 [R * (1 + picks)] (kernels/block_inputs.py): the anchor of request r is at r * (1 + picks).
        picks: int32, k, picks of a request.
        num_rows: int32 [1], live rows.

    Launch: a block a row, threads over the K * K pairs. Block `j` owns row j. No barrier; safe under capture.
    Oracle: oracle_dflash.edge_scores.
    """
    count, rank = ids.shape[1], gate.shape[1]
    last = i32(predecessors.shape[0]) - i32(1)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        is_first = row % picks == 0
        pairs = count if is_first else count * count
        for pair in range(cuda.threadIdx.x, pairs, cuda.blockDim.x):
            a = pair // count
            b = pair % count
            previous = block_ids[row // picks * (picks + 1)] if is_first else ids[row - 1, a]
            # The anchor of a row that proposes nothing may be any number; its scores are thrown away.
            previous = min(max(previous, 0), last)
            candidate = ids[row, b]
            total = f32(0.0)
            for i in range(rank):
                total += predecessors[previous, i] * gate[row, i] * successors[candidate, i]
            scores[row, a, b] = values[row, b] + total


@kernel(writes=("chosen",))
def selector_walk(chosen, ids, scores, picks, num_requests):
    """chosen[j] = the candidate of row j with the best score behind the one chosen for the row before, from the anchor on.

    The first of equal scores wins; NaN never does (a row of NaN yields its first candidate).

    Args:
        chosen: int32 [J], J = R * picks.
        ids: int32 [J, K], K <= MAX_THREADS.
        scores: float32 [J, K, K] (`edge_scores`); of the first row of a request only [0, :] is read.
        picks: int32, rows of a request.
        num_requests: int32 [1], live requests.

    Launch: a block a request, of one warp where K <= 32: threads over the candidates, then a tree; the pick is by (score, place),
    so the block size changes nothing. Block `r` owns the rows of request r; barriers are reached by all its threads. Safe under
    capture. Oracle: oracle_dflash.selector_walk. Method: ancestral walk at temperature 0, no beam.
    """
    best_score = cuda.shared.array(MAX_THREADS, f32)
    best_place = cuda.shared.array(MAX_THREADS, i32)
    count = i32(ids.shape[1])
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    for request in range(cuda.blockIdx.x, num_requests[0], cuda.gridDim.x):
        before = i32(0)
        for step in range(picks):
            row = request * picks + step
            score = NEG_INF
            place = count
            for candidate in range(tid, count, threads):
                if scores[row, before, candidate] > score:
                    score = scores[row, before, candidate]
                    place = i32(candidate)
            best_score[tid] = score
            best_place[tid] = place
            cuda.syncthreads()
            width = threads
            while width > i32(1):
                half = i32((width + i32(1)) // i32(2))
                if tid < width - half:
                    other = i32(tid + half)
                    larger = best_score[other] > best_score[tid]
                    if larger or (best_score[other] == best_score[tid] and best_place[other] < best_place[tid]):
                        best_score[tid] = best_score[other]
                        best_place[tid] = best_place[other]
                cuda.syncthreads()
                width = half
            before = i32(best_place[0])
            if before >= count:
                before = i32(0)
            if tid == i32(0):
                chosen[row] = ids[row, before]
            cuda.syncthreads()
