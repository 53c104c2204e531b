"""SwiGLU, the gated activation of the feed-forward layer (Shazeer, 2020)."""

from __future__ import annotations

from kernels.behind_product import EIGHT, gated_eight
from kernels.exponential import exp
from kernels.lang import cuda, f32, i32, kernel
from kernels.lang_eight import read_eight, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import warp_size


@kernel(writes=("out",), overlap=True)
def swiglu(out, gate_up, num_tokens):
    """out[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i] for the live tokens, silu(g) = g / (1 + exp(-g)).

    Args:
        out: [T, I], any storage type.
        gate_up: [T, 2I], any storage type, gate first; on a GPU 16-byte accesses where I is a multiple of 8.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n) for any n, threads over eight columns each; a wide layer wants several blocks a row. An element belongs
    to one thread. No barrier; safe under capture. Oracle: oracle_forward.swiglu.
    """
    wait_for_launches()
    let_next_launch_start()
    if warp_size() > i32(1) and out.shape[1] % EIGHT == 0:  # elsewhere the loop below is what a compiler turns into vectors
        columns, row = i32(out.shape[1]), i32(cuda.blockIdx.x)
        while row < num_tokens[0]:
            i = i32(cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * i32(EIGHT)
            while i < columns:
                write_eight(out, row, i, gated_eight(read_eight(gate_up, row, i), read_eight(gate_up, row, columns + i), f32(1.0)))
                i += i32(cuda.gridDim.y * cuda.blockDim.x) * i32(EIGHT)
            row += i32(cuda.gridDim.x)
        return
    width = out.shape[1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.gridDim.y * cuda.blockDim.x
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        for i in range(first, width, stride):
            gate = widen(gate_up[row, i])
            out[row, i] = narrow(gate / (f32(1.0) + exp(-gate)) * widen(gate_up[row, width + i]), out)
