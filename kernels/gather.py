"""Row gather: only the rows that are asked for logits go through the head."""

from __future__ import annotations

from kernels.lang import cuda, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@kernel(writes=("out",), overlap=True)
def gather_rows(out, x, indices, num_rows):
    """out[j] = x[indices[j]] for the live rows.

    Args:
        out: [J, H], any storage type.
        x: [T, H], any storage type.
        indices: int32 [J], each in [0, T).
        num_rows: int32 [1], live rows of `out`.

    Launch: a block a row, threads over the columns. Block `j` owns row j of `out`. No barrier; safe under capture.
    Oracle: oracle_forward.gather_rows.
    """
    wait_for_launches()
    let_next_launch_start()
    width = x.shape[1]
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        source = indices[row]
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(widen(x[source, i]), out)
