"""Prompt tokens of the rows that are still inside their prompt."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel


@device_function
def prefill_rows(
    input_ids, next_prefill, history, prefill_len, num_computed, idx_mapping, query_start_loc, num_requests, first_row, row_step,
    thread, threads,
):  # fmt: skip
    """`prefill_inputs` by one of `row_step` groups of `threads` threads, which takes rows first_row, first_row + row_step, .."""
    rows = i32(num_requests[0])
    slots = i32(prefill_len.shape[0])
    length = i32(history.shape[1])
    for row in range(first_row, rows, row_step):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < slots:
            computed = i32(num_computed[slot])
            prompt = i32(prefill_len[slot])
            start = i32(query_start_loc[row])
            query_len = i32(query_start_loc[row + i32(1)]) - start
            if computed < prompt:
                for j in range(thread, min(query_len, i32(length - computed)), threads):
                    input_ids[start + j] = history[slot, computed + j]
                following = i32(computed + query_len)
                if thread == i32(0) and following < prompt and following < length:
                    next_prefill[slot] = history[slot, following]


@kernel(writes=("input_ids", "next_prefill"))
def prefill_inputs(input_ids, next_prefill, history, prefill_len, num_computed, idx_mapping, query_start_loc, num_requests):
    """Copy the scheduled chunk of each prompt into the input ids, and remember the prompt token that follows the chunk.

    input_ids    int32 [T] out: history[slot, num_computed + j] for rows with num_computed < prefill_len. Other rows stay
                                 untouched: the combine writes them. A row whose drafts begin in its prompt tail gets
                                 what its history holds behind the prompt (-1 after admission), and the combine
                                 overwrites exactly that.
    next_prefill int32 [N] out: history[slot, num_computed + query length] where that is still prompt (what a drafter reads as
                                 the "next token" of a chunk); otherwise untouched.
    history      int32 [N, L], prefill_len int32 [N] prompt tokens known at admission, num_computed int32 [N],
    idx_mapping int32 [R], query_start_loc int32 [R+1], num_requests int32 [1].

    Launch: grid R (a block a request row), block 32..256 over its tokens; any grid and block is right.
    Row r belongs to block r % grid. No barrier. Capture safe. Oracle: kernels.oracle_step.prefill_inputs.
    """
    prefill_rows(
        input_ids, next_prefill, history, prefill_len, num_computed, idx_mapping, query_start_loc, num_requests,
        i32(cuda.blockIdx.x), i32(cuda.gridDim.x), i32(cuda.threadIdx.x), i32(cuda.blockDim.x),
    )  # fmt: skip
