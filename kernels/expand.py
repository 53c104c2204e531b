"""From request rows to logits rows."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("slot_of_row", "local_position"), overlap=True)
def expand_rows(slot_of_row, local_position, idx_mapping, cu_num_logits, num_requests):
    """For each logits row: the slot of its request, and which row of that request it is (0 = after the committed token).

    slot_of_row int32 [J] out;  local_position int32 [J] out;  idx_mapping int32 [R];  cu_num_logits int32 [R+1];
    num_requests int32 [1].

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. Row r belongs to one thread.
    No barrier. Capture safe. Oracle: kernels.oracle_step.expand_rows.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(num_requests[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        base = i32(cu_num_logits[row])
        for j in range(i32(cu_num_logits[row + i32(1)]) - base):
            slot_of_row[base + j] = idx_mapping[row]
            local_position[base + j] = i32(j)
