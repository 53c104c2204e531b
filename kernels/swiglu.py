"""SwiGLU, the gated activation of the feed-forward layer (Shazeer, 2020)."""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import cuda, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@kernel(writes=("out",), overlap=True)
def swiglu(out, gate_up, num_tokens):
    """out[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i] for the live tokens, silu(g) = g / (1 + exp(-g)).

    Args:
        out: [T, I], any storage type.
        gate_up: [T, 2I], any storage type, gate first.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n) for any n, threads over the columns; a wide layer wants several blocks a row. An element belongs to
    one thread. No barrier; safe under capture. Oracle: oracle_forward.swiglu.
    """
    wait_for_launches()
    let_next_launch_start()
    width = out.shape[1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.gridDim.y * cuda.blockDim.x
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        for i in range(first, width, stride):
            gate = widen(gate_up[row, i])
            out[row, i] = narrow(gate / (f32(1.0) + exp(-gate)) * widen(gate_up[row, width + i]), out)
