"""The outcome of a step in one block, so that one copy brings it to the host."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel

OUTCOME_FIELDS = 4
"""Columns of an outcome row before its tokens: num_sampled, num_drafts, finished, and where nothing could be chosen: 1 + the place
of the first emitted NO_TOKEN (kernels/argmax.py), 0 = there is none. The request ends in front of it."""


@device_function
def publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests):
    """What `publish` does."""
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        kept, nothing = i32(num_sampled[row]), i32(0)
        outcome[0, row, 0] = kept
        outcome[0, row, 1] = num_drafts[row]
        slot = i32(idx_mapping[row])
        outcome[0, row, 2] = finished[slot] if slot >= i32(0) and slot < i32(finished.shape[0]) else i32(0)
        for column in range(sampled.shape[1]):
            token = i32(sampled[row, column])
            if column < kept and token < i32(0):
                if nothing == i32(0):
                    nothing = i32(column + 1)
                token = i32(0)
                sampled[row, column] = token
            outcome[0, row, OUTCOME_FIELDS + column] = token
        outcome[0, row, 3] = nothing


@kernel(writes=("outcome", "sampled"))
def publish(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests):
    """outcome[0, r] = num_sampled[r], num_drafts[r], finished[slot of r], 1 + the place of the first NO_TOKEN, sampled[r, :].

    outcome int32 [1, N, 4 + W] out, rows from num_requests on stay.   sampled int32 [R, W] in/out: id 0 where an emitted token is
    NO_TOKEN, so that every id is one of the vocabulary from here on; -1 behind num_sampled.   num_sampled, num_drafts int32 [R] by
    row.   finished int32 [N] by slot.   idx_mapping int32 [R].   num_requests int32 [1].

    Launch: one thread a request row (grid 1, block 32); any grid and block is right. A row belongs to one thread. No barrier.
    Capture safe. Oracle: kernels.oracle_step.publish.
    """
    publish_rows(outcome, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests)
