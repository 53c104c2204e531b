"""The two scalars that some drafters put between the head and the pick."""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import cuda, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches


@kernel(writes=("logits",), overlap=True)
def logit_scale(logits, multiplier, cap, num_rows):
    """logits[j] = cap * tanh(multiplier * logits[j] / cap) for the live rows; without the tanh where cap is 0. In place.

    Args:
        logits: float32 [J, V].
        multiplier, cap: float32.
        num_rows: int32 [1], live rows.

    Launch: grid (rows, n) for any n, threads over the columns. An element belongs to one thread. No barrier; safe under capture,
    and not idempotent. Oracle: oracle_dflash.logit_scale.
    """
    wait_for_launches()
    let_next_launch_start()
    width = logits.shape[1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.gridDim.y * cuda.blockDim.x
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        for i in range(first, width, stride):
            value = logits[row, i] * multiplier
            if cap > f32(0.0):
                # tanh(y) = 1 - 2 / (exp(2 y) + 1): no overflow, since exp saturates at infinity.
                value = cap * (f32(1.0) - f32(2.0) / (exp(f32(2.0) * value / cap) + f32(1.0)))
            logits[row, i] = value
