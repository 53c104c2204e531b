"""The outcome of a step in one block, so that one copy brings it to the host."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel

OUTCOME_FIELDS = 4
"""Columns of an outcome row before its tokens: num_sampled, num_drafts, finished, and where nothing could be chosen
(kernels/degenerate.py)."""


@device_function
def publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests):
    """What `publish` does."""
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        outcome[0, row, 0] = num_sampled[row]
        outcome[0, row, 1] = num_drafts[row]
        slot = i32(idx_mapping[row])
        outcome[0, row, 2] = finished[slot] if slot >= i32(0) and slot < i32(finished.shape[0]) else i32(0)
        outcome[0, row, 3] = i32(0)
        for column in range(sampled.shape[1]):
            outcome[0, row, OUTCOME_FIELDS + column] = sampled[row, column]


@kernel(writes=("outcome",))
def publish(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests):
    """outcome[0, r] = num_sampled[r], num_drafts[r], finished[slot of r], 0, sampled[r, :].

    outcome int32 [1, N, 4 + W] out, rows from num_requests on stay.   sampled int32 [R, W], num_sampled, num_drafts int32 [R] by
    row.   finished int32 [N] by slot.   idx_mapping int32 [R].   num_requests int32 [1].

    Launch: one thread a request row (grid 1, block 32); any grid and block is right. A row of `outcome` belongs to one thread. No
    barrier. Capture safe. Oracle: kernels.oracle_step.publish.
    """
    publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests)
