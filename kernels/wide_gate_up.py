"""Gate and up of a step of many rows with SwiGLU behind them: up to 64 rows at once, each weight read once.

A verify step of eight requests has 64 rows. The library multiplies them as fast as memory yields the weights, but nothing overlaps
its launch, and SwiGLU is another. Here the first weights are under way while the norm in front is at work. That norm is whole: the
sums of squares of 64 rows would be as much to read for every block as a quarter of its activations, and would come late.
"""

from __future__ import annotations

from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_eight import write_eight
from kernels.lang_fast import sigmoid
from kernels.lang_overlap import early_count, let_next_launch_start, wait_for_launches
from kernels.wide_tile import HEIGHT, RING_BYTES, WIDE_TOKENS, begin_wide, multiply_wide, place_of, wide_sums

_REGISTERS = 128  # of eight warps, beside a block of the norm in front

OUTPUTS = HEIGHT // 2
"""Of a tile: as many rows of gate and of up."""

_EIGHTS = OUTPUTS // 8


@device_function
def gated(gate, up):
    return gate * sigmoid(gate) * up


@device_function
def eight_gated(g, u):
    return (
        gated(g[0], u[0]),
        gated(g[1], u[1]),
        gated(g[2], u[2]),
        gated(g[3], u[3]),
        gated(g[4], u[4]),
        gated(g[5], u[5]),
        gated(g[6], u[6]),
        gated(g[7], u[7]),
    )


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
        begin_wide(ring, weight, base, outputs + base, i32(0), i32(1))
    wait_for_launches()
    let_next_launch_start()
    while base < outputs:
        token = i32(0)
        while token < live:
            if not begun:
                begin_wide(ring, weight, base, outputs + base, i32(0), i32(1))
            begun = False
            multiply_wide(ring, x, token, weight, base, outputs + base, i32(0), i32(1))
            cuda.syncthreads()
            item, rows = i32(cuda.threadIdx.x), min(live - token, i32(WIDE_TOKENS))
            while item < rows * i32(_EIGHTS):
                t, place = place_of(item, rows)
                row, output = token + t, base + place
                if output < outputs:
                    gates = wide_sums(ring, x, weight, row, output, t, place, i32(0), i32(1))
                    below = i32(OUTPUTS) + place
                    ups = wide_sums(ring, x, weight, row, outputs + output, t, below, i32(0), i32(1))
                    write_eight(out, row, output, eight_gated(gates, ups))
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
            token += i32(WIDE_TOKENS)
        base += step
