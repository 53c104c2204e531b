"""Where each token row of a step stands: its position, its request's length, its slot and its cell of the KV cache."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel


@device_function
def cache_cell(block_tables, table_row, position, block_size, max_model_len):
    """Cell of the paged KV cache for `position`, or -1 where nothing may be stored: past the model length, past the table, or
    in a block that was never given out (table entry < 0)."""
    if position < i32(0) or position >= max_model_len:
        return i32(-1)
    column = i32(position // block_size)
    if column >= i32(block_tables.shape[1]):
        return i32(-1)
    block = i32(block_tables[table_row, column])
    if block < i32(0):
        return i32(-1)
    return i32(block * block_size + (position - column * block_size))


@device_function
def prepare_rows(
    positions, seq_lens, token_slot, slot_mapping, num_computed, idx_mapping, query_start_loc, block_tables, block_size,
    max_model_len, num_requests, first_row, row_step, thread, threads,
):  # fmt: skip
    """`prepare` by one of `row_step` groups of `threads` threads, which takes rows first_row, first_row + row_step, .."""
    rows = i32(num_requests[0])
    slots = i32(num_computed.shape[0])
    for row in range(first_row, rows, row_step):
        slot = i32(idx_mapping[row])
        start = i32(query_start_loc[row])
        query_len = i32(query_start_loc[row + i32(1)]) - start
        known = slot >= i32(0) and slot < slots
        computed = i32(0)
        if known:
            computed = i32(num_computed[slot])
        if thread == i32(0):
            seq_lens[row] = i32(computed + query_len) if known else i32(0)
        for j in range(thread, query_len, threads):
            token = i32(start + j)
            position = i32(computed + j)
            if known:
                token_slot[token] = slot
                slot_mapping[token] = cache_cell(block_tables, slot, position, block_size, max_model_len)
                positions[token] = min(position, i32(max_model_len - i32(1)))
            else:
                token_slot[token] = i32(-1)
                slot_mapping[token] = i32(-1)
                positions[token] = i32(0)
    first = i32(first_row * threads + thread)
    step = i32(row_step * threads)
    for row in range(rows + first, i32(seq_lens.shape[0]), step):
        seq_lens[row] = i32(0)
    for token in range(i32(query_start_loc[rows]) + first, i32(positions.shape[0]), step):
        positions[token] = i32(0)
        token_slot[token] = i32(-1)
        slot_mapping[token] = i32(-1)


@kernel(writes=("positions", "seq_lens", "token_slot", "slot_mapping"))
def prepare(
    positions,
    seq_lens,
    token_slot,
    slot_mapping,
    num_computed,
    idx_mapping,
    query_start_loc,
    block_tables,
    block_size,
    max_model_len,
    num_requests,
):
    """Positions, sequence lengths, slots and cache cells of a step, from the computed lengths that the device owns.

    positions    int32 [T] out: num_computed[slot] + j for the j-th row of a request; at most max_model_len - 1, so that
                                 no rotary row is read outside its table (drafts may reach past the end). Pads 0.
    seq_lens     int32 [R] out: num_computed[slot] + query length. Pads 0.
    token_slot   int32 [T] out: slot of the token's request. Pads -1.
    slot_mapping int32 [T] out: block_tables[slot, p // block_size] * block_size + p % block_size; -1 where p >= max_model_len
                                 or the block was not given out. Pads -1, so that a pad stores no key.
    num_computed int32 [N], idx_mapping int32 [R] row -> slot, query_start_loc int32 [R+1], block_tables int32 [N, B] by slot,
    num_requests int32 [1]. A row whose slot is outside [0, N) is treated as a pad.

    Launch: grid R (a block a request row), block 32..256 over its tokens; any grid and block is right, loops are strided.
    Row r and its tokens belong to block r % grid; pads are shared out over the whole grid. No barrier. Capture safe.
    Oracle: kernels.oracle_step.prepare.
    """
    prepare_rows(
        positions, seq_lens, token_slot, slot_mapping, num_computed, idx_mapping, query_start_loc, block_tables, block_size,
        max_model_len, num_requests, i32(cuda.blockIdx.x), i32(cuda.gridDim.x), i32(cuda.threadIdx.x), i32(cuda.blockDim.x),
    )  # fmt: skip
