"""The end of a step in one launch: what a prompt emits is dropped, lengths, history and stops move, the outcome is published."""

from __future__ import annotations

from kernels.accept import count_rejected
from kernels.advance import advance_rows
from kernels.lang import kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.publish import publish_rows


@kernel(
    writes=(
        "outcome",
        "num_computed",
        "total_len",
        "last_sampled",
        "history",
        "finished",
        "sampled",
        "num_sampled",
        "num_rejected",
    ),
    overlap=True,
)
def end_step(
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
):
    """`sampled_rejected` (kernels/accept.py), then `advance` and `publish`. Each argument is what it is in those kernels.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. A row and its slot belong to one thread,
    which does all three in turn. No barrier. Capture safe. Oracle: kernels.oracle_step.end_step.
    """
    wait_for_launches()
    let_next_launch_start()
    count_rejected(num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_requests)
    advance_rows(
        num_computed, total_len, last_sampled, history, finished, sampled, num_sampled, num_rejected, idx_mapping, query_start_loc,
        max_total_len, min_total_len, stop_ids, num_requests,
    )  # fmt: skip
    publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests)
