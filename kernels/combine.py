"""The combine: committed and draft tokens become the input ids of a step, on the device, before the forward reads them."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.lang import cuda, device_function, i32, kernel


@device_function
def combine_rows(
    input_ids, logits_indices, idx_mapping, last_sampled, query_start_loc, seq_lens, prefill_len, draft_tokens, cu_num_logits,
    bonus, num_requests, first_row, row_step, thread, threads,
):  # fmt: skip
    """`combine` by one of `row_step` groups of `threads` threads, which takes rows first_row, first_row + row_step, .."""
    rows = i32(num_requests[0])
    slots = i32(last_sampled.shape[0])
    stride = i32(draft_tokens.shape[1])
    for row in range(first_row, rows, row_step):
        slot = i32(idx_mapping[row])
        base = i32(cu_num_logits[row])
        num_logits = i32(cu_num_logits[row + i32(1)]) - base
        query_start = i32(query_start_loc[row])
        query_end = i32(query_start_loc[row + i32(1)])
        logits_start = i32(query_end - num_logits)
        for j in range(thread, num_logits, threads):
            logits_indices[base + j] = i32(logits_start + j)
        # A row that asks for more logits than it has tokens would write into its neighbour: it writes nothing.
        if num_logits > i32(0) and logits_start >= query_start and slot >= i32(0) and slot < slots:
            prompt = i32(prefill_len[slot])
            seq_len = i32(seq_lens[row])
            if seq_len > prompt:
                if thread == i32(0) and bonus > i32(0) and seq_len - num_logits >= prompt:
                    input_ids[logits_start] = last_sampled[slot]
                num_drafts = i32(num_logits - bonus)
                for i in range(thread, num_drafts, threads):
                    input_ids[query_end - num_drafts + i] = draft_tokens[slot, i] if i < stride else i32(-1)


@kernel(writes=("input_ids", "logits_indices"))
def combine(
    input_ids,
    logits_indices,
    idx_mapping,
    last_sampled,
    query_start_loc,
    seq_lens,
    prefill_len,
    draft_tokens,
    cu_num_logits,
    bonus,
    num_requests,
):
    """Write [last_sampled, drafts...] over the last logits rows of each request, and list those rows.

    input_ids      int32 [T] in/out: a prompt row is left alone; a decode row gets its committed token; a verify row gets the
                                    committed token and its k_r drafts. A draft of -1 is copied as -1.
    logits_indices int32 [J] out: token row of each logits row: the last cu[r+1] - cu[r] rows of request r, prompt rows too.
    idx_mapping    int32 [R] row -> slot;  query_start_loc, cu_num_logits int32 [R+1];  seq_lens int32 [R] computed + scheduled
    last_sampled, prefill_len int32 [N] by slot;  draft_tokens int32 [N, stride] by slot, -1 = no draft
    bonus          1: the first logits row of a request holds its committed token; 0: all of them hold drafts.
    num_requests   int32 [1]

    Guard A: seq_len <= prefill_len: still in the prompt (the chunk that ends it included), nothing is written.
    Guard B: the committed token is skipped where its position is still prompt (seq_len - num_logits < prefill_len): a verify row
    may begin on the last prompt token, which must stay. Drafts are not under guard B.
    A row has num_logits - bonus drafts; the stride of the pool is never a bound: its pad would land in the next row's prompt.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. Row r belongs to one thread.
    No barrier. Capture safe. Refusals need lengths, so they are the host's: `check_arguments`.
    Oracle: kernels.oracle_step.combine. Method: combine_sampled_and_draft_tokens of vLLM's model runner v2.
    """
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    step = i32(cuda.gridDim.x) * i32(cuda.blockDim.x)
    combine_rows(
        input_ids, logits_indices, idx_mapping, last_sampled, query_start_loc, seq_lens, prefill_len, draft_tokens, cu_num_logits,
        bonus, num_requests, first, step, i32(0), i32(1),
    )  # fmt: skip


def check_arguments(
    *,
    cu_num_logits: Sequence[int],
    query_start_loc: Sequence[int],
    idx_mapping: Sequence[int],
    draft_shape: tuple[int, int],
    num_slots: int,
    bonus: int,
) -> None:
    """Refuse, before anything is captured or staged, what the kernel has no lengths to refuse.

    Args:
        cu_num_logits, query_start_loc: prefix sums of R + 1 entries.
        idx_mapping: slot of each of the R rows.
        draft_shape: (rows, stride) of the draft pool. The pool has a row for each slot, not for each live row.
        num_slots: N, rows of every per-slot array.
        bonus: 1 or 0.

    Raises:
        ValueError: naming the values and what would fit.
    """
    requests = len(idx_mapping)
    if bonus not in (0, 1):
        raise ValueError(f"bonus = {bonus}: a logits row holds either one committed token (1) or none (0)")
    for name, sums in (("cu_num_logits", cu_num_logits), ("query_start_loc", query_start_loc)):
        if len(sums) != requests + 1:
            raise ValueError(f"{name} has {len(sums)} entries for {requests} requests: pass R + 1 = {requests + 1}")
        if sums[0] != 0:
            raise ValueError(f"{name}[0] = {sums[0]}: a prefix sum starts at 0")
    pool_rows, stride = draft_shape
    for row, slot in enumerate(idx_mapping):
        num_logits = cu_num_logits[row + 1] - cu_num_logits[row]
        query_len = query_start_loc[row + 1] - query_start_loc[row]
        num_drafts = num_logits - bonus
        if not 0 <= slot < num_slots:
            raise ValueError(f"idx_mapping[{row}] = {slot}: outside the slots 0..{num_slots - 1}")
        if query_len < 0:
            raise ValueError(f"query length of row {row} = {query_len}: query_start_loc must not fall")
        if num_logits < 0 or num_drafts < 0:
            raise ValueError(f"drafts of row {row} = {num_drafts} ({num_logits} logits rows, bonus = {bonus}): must be >= 0")
        if num_logits > query_len:
            raise ValueError(f"row {row} asks for {num_logits} logits rows of {query_len} tokens: schedule at least as many tokens")
        if num_drafts > stride:
            raise ValueError(f"row {row} has {num_drafts} drafts, the stride of the draft pool is {stride}: widen draft_tokens")
    if pool_rows < num_slots:
        raise ValueError(f"draft pool has {pool_rows} rows for {num_slots} slots: it must cover every slot, not every live row")
