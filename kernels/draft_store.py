"""Picks of a block drafter into the draft pool, by slot."""

from __future__ import annotations

from kernels.argmax import NO_TOKEN
from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("draft_tokens", "num_draft"), overlap=True)
def store_drafts(draft_tokens, num_draft, chosen, block_lens, finished, idx_mapping, num_sampled, num_requests):
    """draft_tokens[slot] = the picks of the request's block that stand below max_model_len, -1 behind them.

    draft_tokens int32 [N, k] out: -1 where there is no draft.    num_draft int32 [N] out: 0..k.
    chosen       int32 [R * k], k picks a request; NO_TOKEN (kernels/argmax.py) ends its drafts
    block_lens   int32 [R], anchor included (kernels/block_inputs.py)
    finished     int32 [N] by slot;  idx_mapping int32 [R] row -> slot;  num_sampled int32 [R] after `advance`
    num_requests int32 [1].

    A row that emitted nothing (it is still in its prompt) or is finished gets no drafts: its slot is cleared, so that no draft of
    an earlier step survives.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. Row r and its slot belong to one thread.
    No barrier. Capture safe. Oracle: kernels.oracle_dflash.store_drafts.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(num_requests[0])
    slots = i32(draft_tokens.shape[0])
    k = i32(draft_tokens.shape[1])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < slots:
            count = i32(0)
            if num_sampled[row] > i32(0) and finished[slot] == i32(0):
                count = max(min(k, i32(block_lens[row] - i32(1))), i32(0))
            for i in range(k):
                token = chosen[row * k + i] if i < count else NO_TOKEN
                if token < i32(0):
                    count = min(count, i32(i))
                draft_tokens[slot, i] = token
            num_draft[slot] = count
