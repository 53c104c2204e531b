"""Token counts by slot, the state that frequency, presence and repetition penalties read."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel


@kernel(writes=("counts",))
def count_tokens(counts, sampled, num_sampled, idx_mapping, num_requests):
    """counts[slot, id] += 1 for each token that a step kept. Runs after `advance`, which has cut num_sampled at a stop.

    counts      int32 [N, V] in/out: how often a slot has emitted an id.
    sampled     int32 [R, W], num_sampled int32 [R], idx_mapping int32 [R], num_requests int32 [1].
    Ids outside [0, V) and rows whose slot is outside [0, N) count nothing.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. A slot appears in at most one row of a
    step, so its counts belong to one thread and need no atomics. No barrier. Capture safe.
    Oracle: kernels.oracle_step.count_tokens.
    """
    rows = i32(num_requests[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < i32(counts.shape[0]):
            for i in range(min(i32(num_sampled[row]), i32(sampled.shape[1]))):
                token = i32(sampled[row, i])
                if token >= i32(0) and token < i32(counts.shape[1]):
                    counts[slot, token] += i32(1)
