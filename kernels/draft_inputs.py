"""Inputs of a drafter's next one-token step."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel
from kernels.prepare import cache_cell


@kernel(writes=("positions", "slot_mapping", "seq_lens"))
def draft_inputs(
    positions, slot_mapping, seq_lens, target_positions, seq_lens_in, block_tables, block_size, max_model_len, num_requests
):
    """Move each row of a drafter one position on.

    positions    int32 [R] out: target_positions + 1; 0 where that reaches max_model_len. Pads 0.
    slot_mapping int32 [R] out: cache cell of the new position; -1 where it reaches max_model_len or has no block. Pads -1.
    seq_lens     int32 [R] out: seq_lens_in + 1; 1 where the position reaches max_model_len. Pads 0: a pad that grew from 0 to 1
                                 would read a block that it does not have.
    target_positions, seq_lens_in int32 [R];  block_tables int32 [R, B] by batch row;  num_requests int32 [1].

    Launch: one thread a row (grid 1, block 32..256); any grid and block is right. Row r belongs to one thread.
    No barrier. Capture safe. Oracle: kernels.oracle_step.draft_inputs.
    """
    rows = i32(num_requests[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, i32(positions.shape[0]), i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        if row >= rows:
            positions[row] = i32(0)
            slot_mapping[row] = i32(-1)
            seq_lens[row] = i32(0)
        else:
            position = i32(target_positions[row]) + i32(1)
            if position >= max_model_len:
                positions[row] = i32(0)
                slot_mapping[row] = i32(-1)
                seq_lens[row] = i32(1)
            else:
                positions[row] = i32(position)
                slot_mapping[row] = cache_cell(block_tables, row, position, block_size, max_model_len)
                seq_lens[row] = i32(seq_lens_in[row]) + i32(1)
