"""Slots: admission of a request, and ordered small writes into arrays that live on the device."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel

RECORD_FIELDS = 8
"""int32 fields of an admission record before its stop ids (the last of them is reserved)."""

RECORD_PREFILL_LEN, RECORD_PROMPT_LEN, RECORD_NEXT_TOKEN = 1, 5, 6
"""Places of an admission record that other kernels read too."""


@kernel(
    writes=(
        "num_computed",
        "total_len",
        "last_sampled",
        "draft_tokens",
        "num_draft",
        "finished",
        "prefill_len",
        "max_total_len",
        "min_total_len",
        "stop_ids",
        "history",
    )
)
def admit(
    num_computed,
    total_len,
    last_sampled,
    draft_tokens,
    num_draft,
    finished,
    prefill_len,
    max_total_len,
    min_total_len,
    stop_ids,
    history,
    record,
    tokens,
):
    """Give a slot to a request: every per-slot field is written, so that nothing of the previous owner can be read.

    num_computed, total_len, last_sampled, num_draft, finished, prefill_len, max_total_len, min_total_len  int32 [N] out
    draft_tokens int32 [N, k] out: row = -1.     stop_ids int32 [N, S] out.     history int32 [N, L] out: tokens, then -1.
    record int32 [8 + S]: slot, prefill_len, num_computed, max_total_len, min_total_len, prompt length (kernels/penalties.py reads
           it), the token behind the prefill where that is known (-1: it is not), 1 reserved, stop ids (-1 = none).
    tokens int32 [>= prefill_len]: the tokens known now: the prompt, and after a preemption what was generated too.

    total_len becomes prefill_len. A token known behind it stands in the history there: the step that ends the prefill emits that
    one (kernels/reject_residual.py), as it did before a preemption. last_sampled becomes tokens[num_computed - 1] where
    0 < num_computed <= prefill_len, else 0: a request whose cache was found elsewhere decodes first from its own last token. A slot
    outside [0, N) writes nothing.

    Launch: any grid and block (grid 1, block 256); elements are shared out over the grid. No barrier. Capture safe.
    Oracle: kernels.oracle_step.admit.
    """
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    step = i32(cuda.gridDim.x) * i32(cuda.blockDim.x)
    slot = i32(record[0])
    if slot >= i32(0) and slot < i32(num_computed.shape[0]):
        known = max(i32(0), min(i32(record[1]), min(i32(history.shape[1]), i32(tokens.shape[0]))))
        computed = i32(record[2])
        if first == i32(0):
            num_computed[slot] = computed
            total_len[slot] = known
            prefill_len[slot] = known
            max_total_len[slot] = record[3]
            min_total_len[slot] = record[4]
            num_draft[slot] = i32(0)
            finished[slot] = i32(0)
            last_sampled[slot] = tokens[computed - i32(1)] if computed > i32(0) and computed <= known else i32(0)
        for i in range(first, i32(draft_tokens.shape[1]), step):
            draft_tokens[slot, i] = i32(-1)
        for i in range(first, i32(stop_ids.shape[1]), step):
            stop_ids[slot, i] = record[i32(RECORD_FIELDS) + i]
        for i in range(first, i32(history.shape[1]), step):
            history[slot, i] = tokens[i] if i < known else max(i32(record[RECORD_NEXT_TOKEN]), i32(-1)) if i == known else i32(-1)


@device_function
def write_staged(target, writes, num_writes, first, threads):
    """`staged_write` by thread `first` of `threads`."""
    for w in range(i32(num_writes[0])):
        row = i32(writes[w, 0])
        column = i32(writes[w, 1])
        inside = row >= i32(0) and row < i32(target.shape[0]) and column >= i32(0) and column < i32(target.shape[1])
        if inside and i32((row + column) % threads) == first:
            target[row, column] = writes[w, 2]


@kernel(writes=("target",))
def staged_write(target, writes, num_writes):
    """target[row, column] = value for each triple, in order: a later triple wins over an earlier one on the same cell.

    target int32 [rows, columns] in/out;  writes int32 [W, 3] (row, column, value);  num_writes int32 [1] live triples.
    Triples outside `target` are skipped.

    Launch: any grid and block (grid 1, block 32). Each thread walks all triples and does those of the cells that it owns
    ((row + column) % threads), which keeps the order on a cell without a barrier. Capture safe.
    Oracle: kernels.oracle_step.staged_write.
    """
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    write_staged(target, writes, num_writes, first, i32(cuda.gridDim.x) * i32(cuda.blockDim.x))
