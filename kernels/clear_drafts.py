"""Drafts that nobody will verify are emptied, so that no later step takes them for its own."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel


@kernel(writes=("draft_tokens", "num_draft"))
def clear_drafts(draft_tokens, num_draft, idx_mapping, num_requests):
    """draft_tokens[slot] = -1 and num_draft[slot] = 0 for the slots of the live rows.

    draft_tokens int32 [N, k] out;  num_draft int32 [N] out;  idx_mapping int32 [R];  num_requests int32 [1].
    A row whose slot is outside [0, N) is skipped.

    Launch: any grid and block, a thread a row. No barrier. Capture safe. Oracle: oracle_step.clear_drafts.
    """
    slots = i32(num_draft.shape[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, i32(num_requests[0]), i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < slots:
            num_draft[slot] = i32(0)
            for i in range(i32(draft_tokens.shape[1])):
                draft_tokens[slot, i] = i32(-1)
