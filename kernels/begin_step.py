"""The begin of a step in one launch: staged blocks, places of the rows, prompt tokens, then committed and draft ids over them."""

from __future__ import annotations

from kernels.combine import combine_rows
from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_size
from kernels.prefill_inputs import prefill_rows
from kernels.prepare import prepare_rows
from kernels.project import divide
from kernels.slots import write_staged


@kernel(
    writes=(
        "block_tables",
        "positions",
        "seq_lens",
        "token_slot",
        "slot_mapping",
        "input_ids",
        "next_prefill",
        "logits_indices",
    ),
    overlap=True,
)
def begin_step(
    block_tables,
    positions,
    seq_lens,
    token_slot,
    slot_mapping,
    input_ids,
    next_prefill,
    logits_indices,
    block_writes,
    num_block_writes,
    num_computed,
    idx_mapping,
    query_start_loc,
    cu_num_logits,
    history,
    prefill_len,
    last_sampled,
    draft_tokens,
    block_size,
    max_model_len,
    num_requests,
):
    """`staged_write` of the block tables (kernels/slots.py), then `prepare`, `prefill_inputs` and `combine` with a bonus.

    Each argument is what it is in those kernels. Launched one by one they take four times as long, and nothing runs beside them.

    Launch: one block, since each part reads what the one before has written; a warp a request row, and more rows take turns.
    Barriers are reached by all its threads. Capture safe. Oracle: kernels.oracle_step.begin_step.
    """
    wait_for_launches()
    let_next_launch_start()
    thread, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    warp, warps = divide(thread, warp_size()), max(divide(threads, warp_size()), i32(1))
    width = min(warp_size(), threads)
    write_staged(block_tables, block_writes, num_block_writes, thread, threads)
    cuda.syncthreads()
    if warp < warps:
        prepare_rows(
            positions, seq_lens, token_slot, slot_mapping, num_computed, idx_mapping, query_start_loc, block_tables, block_size,
            max_model_len, num_requests, warp, warps, lane(), width,
        )  # fmt: skip
        prefill_rows(
            input_ids, next_prefill, history, prefill_len, num_computed, idx_mapping, query_start_loc, num_requests, warp, warps,
            lane(), width,
        )  # fmt: skip
    cuda.syncthreads()
    if warp < warps:
        combine_rows(
            input_ids, logits_indices, idx_mapping, last_sampled, query_start_loc, seq_lens, prefill_len, draft_tokens,
            cu_num_logits, i32(1), num_requests, warp, warps, lane(), width,
        )  # fmt: skip
