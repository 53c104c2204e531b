"""Which token rows of a step enter a drafter's context, and where."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel


@kernel(writes=("cells",))
def context_cells(cells, slot_mapping, query_start_loc, num_rejected, finished, idx_mapping, num_requests):
    """Cache cell of each token row that is committed now; -1 for rejected rows, rows of finished requests, and pads.

    cells           int32 [T] out: slot_mapping[t] for the first query length - num_rejected[r] rows of request r, else -1. Every
                                    row is written, so that a replay never stores by what an earlier step left here.
    slot_mapping    int32 [T] cache cells of the target's step (kernels/prepare.py); the drafter's pages follow the same tables.
    query_start_loc int32 [R+1];  num_rejected int32 [R], 0 for a chunk of a prompt;  idx_mapping int32 [R] row -> slot
    finished        int32 [N] by slot, after `advance`;  num_requests int32 [1].

    The first row of a verify step is the old anchor, now committed; the new anchor has no row yet: the context stays strictly
    below its position.

    Launch: grid R (a block a request row), block 32..256 over its tokens; any grid and block is right, loops are strided.
    Row r and its tokens belong to block r % grid; pads are shared out over the whole grid. No barrier. Capture safe.
    Oracle: kernels.oracle_dflash.context_cells. Method: z-lab's crop of the draft cache, as a store that never happens.
    """
    rows = i32(num_requests[0])
    slots = i32(finished.shape[0])
    thread = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    for row in range(i32(cuda.blockIdx.x), rows, i32(cuda.gridDim.x)):
        slot = i32(idx_mapping[row])
        start = i32(query_start_loc[row])
        query_len = i32(query_start_loc[row + i32(1)]) - start
        committed = i32(0)
        if slot >= i32(0) and slot < slots and finished[slot] == i32(0):
            committed = i32(query_len - num_rejected[row])
        for j in range(thread, query_len, threads):
            cells[start + j] = slot_mapping[start + j] if j < committed else i32(-1)
    first = i32(cuda.blockIdx.x) * threads + thread
    for token in range(i32(query_start_loc[rows]) + first, i32(cells.shape[0]), i32(cuda.gridDim.x) * threads):
        cells[token] = i32(-1)
