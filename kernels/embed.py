"""Token embedding: one row of the table for each input id."""

from __future__ import annotations

from kernels.lang import cuda, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@kernel(writes=("out",), overlap=True)
def embed(out, table, input_ids, num_tokens):
    """out[t] = table[input_ids[t]] for the live tokens; an id outside [0, V) gives a zero row.

    A draft that was never proposed is id -1 (kernels/combine.py copies it as it is): its row must be computable, because the
    step's shape is fixed, and its logits are never accepted. Zeros keep it finite.

    Args:
        out: [T, H], any storage type.
        table: [V, H], any storage type.
        input_ids: int32 [T].
        num_tokens: int32 [1], live rows.

    Launch: a block a token, threads over the columns (neighbouring threads read neighbouring columns).
    Block `t` owns row t of `out`. No barrier, nothing is allocated: safe under capture. Oracle: oracle_forward.embed.
    """
    wait_for_launches()
    let_next_launch_start()
    vocabulary, width = table.shape
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        token = input_ids[row]
        if token >= 0 and token < vocabulary:
            for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
                out[row, i] = narrow(widen(table[token, i]), out)
        else:
            for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
                out[row, i] = narrow(f32(0.0), out)
