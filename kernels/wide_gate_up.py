"""Gate and up of a step of many rows with SwiGLU behind them: up to 64 rows at once, each weight read once.

A verify step of eight requests has 64 rows. The library multiplies them as fast as memory yields the weights, but nothing overlaps
its launch, and SwiGLU is another. Here the first weights are under way while the norm in front is at work. That norm is whole: the
sums of squares of 64 rows would be as much to read for every block as a quarter of its activations, and would come late.
"""

from __future__ import annotations

from kernels.lang import cuda, f32, i32, kernel
from kernels.lang_overlap import early_count, let_next_launch_start, wait_for_launches
from kernels.wide_shape import HEIGHT
from kernels.wide_tile import RING_BYTES, WIDE_TOKENS, begin_gate_up, gate_up_of_threads, has_tiles, store_gate_up

_REGISTERS = 128  # of eight warps, beside a block of the norm in front

OUTPUTS = HEIGHT // 2
"""Of a tile: as many rows of gate and of up."""


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight", "num_tokens"), shared=RING_BYTES)
def wide_gate_up(out, x, weight, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T, for the live tokens.

    Args:
        out: [T, I], any storage type; I a multiple of 8.
        x: [T, K], of the weights' type: the norm of the residual.
        weight: [2 I, K], gate first, any storage type; 16-bit on a GPU: K a multiple of 8.
        num_tokens: int32 [1], live rows.

    Launch: eight whole warps on a GPU, any grid: tiles of OUTPUTS columns take turns. A block owns its tiles of `out`. Barriers are
    reached by all its threads. Idempotent; safe under capture. Oracle: oracle_fused.wide_gate_up.
    """
    ring = cuda.shared.array(0, f32)
    outputs, step = i32(out.shape[1]), i32(cuda.gridDim.x) * i32(OUTPUTS)
    base = i32(cuda.blockIdx.x) * i32(OUTPUTS)
    begun, live = base < outputs, early_count(num_tokens)
    if begun:
        begin_gate_up(ring, weight, base)
    wait_for_launches()
    let_next_launch_start()
    while base < outputs:
        token = i32(0)
        while token < live:
            if not begun:
                begin_gate_up(ring, weight, base)
            begun = False
            if has_tiles(x, weight):
                store_gate_up(ring, out, x, token, live, weight, base)
            else:
                gate_up_of_threads(out, x, token, live, weight, base)
            cuda.syncthreads()
            token += i32(WIDE_TOKENS)
        base += step
