"""The end of a decode step whose rows wait: what `end_step` does, and beside it the taps are kept.

One launch for both: the taps are there long before, so that a launch of their own would only make the step longer.
"""

from __future__ import annotations

from kernels.end_step import END_WRITES, end_rows
from kernels.keep_taps import KEEP_WRITES, keep_rows
from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=(*END_WRITES, *KEEP_WRITES), overlap=True)
def end_step_kept(
    outcome,
    num_computed,
    total_len,
    last_sampled,
    history,
    finished,
    sampled,
    num_sampled,
    num_rejected,
    num_drafts,
    seq_lens,
    cu_num_logits,
    idx_mapping,
    query_start_loc,
    prefill_len,
    max_total_len,
    min_total_len,
    stop_ids,
    num_requests,
    kept,
    kept_positions,
    kept_cells,
    draft_tokens,
    num_draft,
    features,
    positions,
    token_slot,
    slot_mapping,
    depth,
    num_tokens,
):
    """`end_step` (kernels/end_step.py) and `keep_rows` (kernels/keep_taps.py), whose arguments these are: neither reads what the
    other writes.

    Launch: grid (tokens, 1 + n), threads over the columns of the taps, at least one a request row in all blocks (t, 0): those end
    the step, and n blocks a row keep its taps. Of grid (m, 1) each block does both; any grid and block is right. No barrier.
    Capture safe. Oracles: kernels.oracle_step.end_step, oracle_context.keep_taps.
    """
    wait_for_launches()
    let_next_launch_start()
    slices = i32(cuda.gridDim.y)
    lane = i32(cuda.blockIdx.y) - i32(slices > i32(1))
    if i32(cuda.blockIdx.y) == i32(0):
        end_rows(
            outcome, num_computed, total_len, last_sampled, history, finished, sampled, num_sampled, num_rejected, num_drafts,
            seq_lens, cu_num_logits, idx_mapping, query_start_loc, prefill_len, max_total_len, min_total_len, stop_ids,
            num_requests,
        )  # fmt: skip
    if lane >= i32(0):
        keep_rows(
            kept, kept_positions, kept_cells, draft_tokens, num_draft, features, positions, token_slot, slot_mapping, depth,
            num_tokens, lane, max(slices - i32(1), i32(1)),
        )  # fmt: skip
