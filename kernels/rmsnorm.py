"""RMSNorm, alone and fused with the residual add that precedes it in every decoder layer (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import math

from kernels.block_reduce import block_total
from kernels.lang import MAX_THREADS, cuda, f32, kernel
from kernels.lang_storage import narrow, widen


@kernel(writes=("out",))
def rms_norm(out, x, weight, eps, num_tokens):
    """out[t] = x[t] / sqrt(mean(x[t]**2) + eps) * weight for the live tokens.

    Args:
        out: [T, H], any storage type; may be `x` itself.
        x: [T, H], any storage type.
        weight: float32 [H].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, threads over the columns, whole warps: a column or a few for each thread, because a thread's loads wait
    for its stores, which might alias them. The sum of squares is a block reduction (its barriers are reached by every thread of the
    block: the row loop depends on blockIdx alone). Block `t` owns row t. Safe under capture.
    Oracle: oracle_forward.rms_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    width = x.shape[1]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            squares += widen(x[row, i]) * widen(x[row, i])
        mean = block_total(squares, scratch) / f32(width)
        scale = f32(1.0) / f32(math.sqrt(mean + eps))
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(widen(x[row, i]) * scale * weight[i], out)


@kernel(writes=("out", "residual"))
def add_rms_norm(out, residual, x, weight, eps, num_tokens):
    """residual[t] += x[t]; out[t] = RMSNorm(residual[t]) * weight for the live tokens.

    Args:
        out: [T, H], any storage type.
        residual: float32 [T, H], updated in place.
        x: [T, H], any storage type, what the sublayer adds to the residual stream; may be `out` itself.
        weight: float32 [H].
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch, ownership and syncs as in `rms_norm`. A thread reads back only those columns of `residual` that it wrote itself.
    Replaying it is not idempotent: the residual grows each time. Oracle: oracle_forward.add_rms_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    width = x.shape[1]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            value = residual[row, i] + widen(x[row, i])
            residual[row, i] = value
            squares += value * value
        mean = block_total(squares, scratch) / f32(width)
        scale = f32(1.0) / f32(math.sqrt(mean + eps))
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(residual[row, i] * scale * weight[i], out)
