"""Greedy verification: walk the drafts of each request against the target's argmax."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("sampled", "num_sampled", "num_drafts"), overlap=True)
def accept_greedy(sampled, num_sampled, num_drafts, row_argmax, input_ids, logits_indices, cu_num_logits, num_requests):
    """Emit the target's tokens up to and including the first that differs from its draft; the bonus token when none differs.

    sampled        int32 [R, W] out: emitted ids, -1 behind them. W >= k + 1.
    num_sampled    int32 [R] out: 1..k_r + 1 (0 for a row without logits). A row still in its prompt is zeroed by
                                 `sampled_rejected`, which comes next.
    num_drafts     int32 [R] out: drafts >= 0 among the k_r rows: placeholders that were never drafted are not counted.
    row_argmax     int32 [J]: argmax of each logits row; row cu[r] + i holds the logits *after* draft i - 1. NO_TOKEN
                                 (kernels/argmax.py) matches no draft: it is emitted, and nothing behind it.
    input_ids      int32 [T] after the combine;  logits_indices int32 [J];  cu_num_logits int32 [R+1];  num_requests int32 [1].

    Draft i of request r is input_ids[logits_indices[cu[r] + 1 + i]]: the ids that the forward was fed, read on the device. Entry
    cu[r] itself is the committed token and is never compared. A draft of -1 matches nothing, so it is rejected where it stands.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. Row r belongs to one thread.
    No barrier. Capture safe. Oracle: kernels.oracle_step.accept_greedy. Method: Leviathan et al. 2023 at temperature 0.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(num_requests[0])
    width = i32(sampled.shape[1])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        base = i32(cu_num_logits[row])
        num_logits = i32(cu_num_logits[row + i32(1)]) - base
        emitted = i32(0)
        drafted = i32(0)
        walking = True
        for i in range(num_logits):
            draft = i32(-1)
            if i + i32(1) < num_logits:
                draft = i32(input_ids[logits_indices[base + i + i32(1)]])
            if draft >= i32(0):
                drafted += i32(1)
            if walking and i < width:
                token = i32(row_argmax[base + i])
                sampled[row, i] = token
                emitted += i32(1)
                walking = draft >= i32(0) and draft == token
        for i in range(emitted, width):
            sampled[row, i] = i32(-1)
        num_sampled[row] = emitted
        num_drafts[row] = drafted


@device_function
def count_rejected(num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_requests):
    """What `sampled_rejected` does."""
    rows = i32(num_requests[0])
    slots = i32(prefill_len.shape[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        emitting = slot >= i32(0) and slot < slots
        if emitting:
            emitting = seq_lens[row] >= prefill_len[slot]
        if emitting:
            num_logits = i32(cu_num_logits[row + i32(1)]) - i32(cu_num_logits[row])
            num_rejected[row] = i32(num_logits - num_sampled[row])
        else:
            num_sampled[row] = i32(0)
            num_rejected[row] = i32(0)


@kernel(writes=("num_sampled", "num_rejected"), overlap=True)
def sampled_rejected(num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_requests):
    """Count the rejected rows of each request; a request that is still in its prompt emits nothing and rejects nothing.

    num_sampled  int32 [R] in/out: set to 0 where seq_lens[r] < prefill_len[slot].
    num_rejected int32 [R] out: logits rows - num_sampled; 0 where num_sampled was set to 0 above.
    seq_lens     int32 [R] computed + scheduled;  cu_num_logits int32 [R+1];  idx_mapping int32 [R];  prefill_len int32 [N];
    num_requests int32 [1]. A row whose slot is outside [0, N) counts as one in its prompt.

    Launch, ownership, capture: as `accept_greedy`. Oracle: kernels.oracle_step.sampled_rejected.
    """
    wait_for_launches()
    let_next_launch_start()
    count_rejected(num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_requests)
