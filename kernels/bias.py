"""Bias of a projection (Qwen2 has one on q, k and v)."""

from __future__ import annotations

from kernels.lang import cuda, kernel
from kernels.lang_storage import narrow, widen


@kernel(writes=("x",))
def add_bias(x, bias, num_tokens):
    """x[t] += bias for the live tokens.

    Args:
        x: [T, C], any storage type, updated in place.
        bias: float32 [C].
        num_tokens: int32 [1], live rows.

    Launch: a block a token, threads over the columns. Block `t` owns row t. No barrier; safe under capture, and not idempotent.
    Oracle: oracle_forward.add_bias.
    """
    width = x.shape[1]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            x[row, i] = narrow(widen(x[row, i]) + bias[i], x)
