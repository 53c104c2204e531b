"""Tokens that stand for rows of logits without a finite entry: nothing could be chosen there, and the request ends before them."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("outcome",), overlap=True)
def publish_degenerate(outcome, degenerate, cu_num_logits, num_requests):
    """outcome[0, r, 3] = 1 + the place of the first emitted token of request r whose row of logits has no finite entry; 0: none.

    outcome int32 [1, N, 4 + W] in/out, behind `publish`: emitted tokens are counted in its first column.   degenerate int32 [J],
    1 = such a row.   cu_num_logits int32 [R + 1].   num_requests int32 [1].

    Launch: one thread a request row (grid 1, block 32); any grid and block is right. No barrier. Capture safe. Oracle:
    kernels.oracle_sampling.publish_degenerate.
    """
    wait_for_launches()
    let_next_launch_start()
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        first = i32(0)
        for i in range(outcome[0, row, 0]):
            if first == i32(0) and degenerate[cu_num_logits[row] + i] != i32(0):
                first = i32(i + 1)
        outcome[0, row, 3] = first
