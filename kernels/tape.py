"""Tapes in device memory: which ids a step drafted, fed and compared, kept by the device and read once, when the run is over.

A gate that read them after each step would wait for the compute stream, and the hazards that it looks for would be gone.
"""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel

TAPE_FIELDS = 3
"""Columns of a tape row before its ids: slot (-1: no such row in that step), position of the first id, number of ids."""

NO_ID = -2
"""Behind the last id of a row; -1 is an id here: a draft that does not exist."""


@kernel(writes=("tape", "cursor"))
def tape_rows(tape, cursor, ids, logits_indices, positions, cu_num_logits, idx_mapping, num_requests):
    """Append to `tape` the ids [T] at the logits rows of each request.

    tape   int32 [C, N, 3 + W] in/out: record cursor % C is written whole, all of its N rows.   cursor int32 [1] in/out: += 1.
    ids    int32 [T] by token row;  logits_indices int32 [J];  positions int32 [T];  cu_num_logits int32 [R+1]
    idx_mapping int32 [R] row -> slot;  num_requests int32 [1].

    Launch: one block, threads over the rows of a record; a row is owned by one thread. A barrier stands between the rows, which
    need the cursor, and the thread that moves it. Capture safe. Oracle: runtime.gates.tapes.rows_record.
    """
    record = i32(cursor[0] % i32(tape.shape[0]))
    width = i32(tape.shape[2])
    for row in range(i32(cuda.threadIdx.x), i32(tape.shape[1]), i32(cuda.blockDim.x)):
        count = i32(0)
        if row < num_requests[0]:
            base = i32(cu_num_logits[row])
            count = min(i32(cu_num_logits[row + i32(1)]) - base, i32(width - i32(TAPE_FIELDS)))
            tape[record, row, 0] = idx_mapping[row]
            tape[record, row, 1] = positions[logits_indices[base]] if count > i32(0) else i32(-1)
            for i in range(count):
                tape[record, row, TAPE_FIELDS + i] = ids[logits_indices[base + i]]
        else:
            tape[record, row, 0] = i32(-1)
            tape[record, row, 1] = i32(-1)
        tape[record, row, 2] = count
        for column in range(TAPE_FIELDS + count, width):
            tape[record, row, column] = i32(NO_ID)
    cuda.syncthreads()
    if cuda.threadIdx.x == i32(0):
        cursor[0] += i32(1)


@kernel(writes=("tape", "cursor"))
def tape_drafts(tape, cursor, draft_tokens, total_len, idx_mapping, num_requests):
    """Append to `tape` the drafts of each request's slot, -1 included; the first of them is for position total_len [N].

    tape [C, N, 3 + W], cursor, idx_mapping, num_requests: as `tape_rows`.   draft_tokens int32 [N, k] by slot, k <= W.

    Launch, ownership, capture: as `tape_rows`. Oracle: runtime.gates.tapes.drafts_record.
    """
    record = i32(cursor[0] % i32(tape.shape[0]))
    width = i32(tape.shape[2])
    for row in range(i32(cuda.threadIdx.x), i32(tape.shape[1]), i32(cuda.blockDim.x)):
        count = i32(0)
        tape[record, row, 0] = i32(-1)
        tape[record, row, 1] = i32(-1)
        if row < num_requests[0]:
            slot = i32(idx_mapping[row])
            count = min(i32(draft_tokens.shape[1]), i32(width - i32(TAPE_FIELDS)))
            tape[record, row, 0] = slot
            tape[record, row, 1] = total_len[slot]
            for i in range(count):
                tape[record, row, TAPE_FIELDS + i] = draft_tokens[slot, i]
        tape[record, row, 2] = count
        for column in range(TAPE_FIELDS + count, width):
            tape[record, row, column] = i32(NO_ID)
    cuda.syncthreads()
    if cuda.threadIdx.x == i32(0):
        cursor[0] += i32(1)
