"""RMSNorm of each query and key head, before the rotation (Qwen3's q_norm and k_norm)."""

from __future__ import annotations

import math

from kernels.lang import MAX_THREADS, block_sum, cuda, f32, kernel
from kernels.lang_storage import narrow, widen


@kernel(writes=("qkv",))
def head_norm(qkv, q_weight, k_weight, num_heads, num_kv_heads, eps, num_tokens):
    """Normalise each q and k head of the live tokens in place; v is left alone.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * hd], any storage type, heads of q, then k, then v; updated in place.
        q_weight: float32 [hd], shared by all query heads.
        k_weight: float32 [hd], shared by all key heads.
        num_heads, num_kv_heads: int32.
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, heads), a block a head, threads over head_dim (a head is one reduction). Block (t, h) owns head h of
    row t; its barriers are reached by all its threads. Safe under capture, and not idempotent. Oracle: oracle_forward.head_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    head_dim = q_weight.shape[0]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        for head in range(cuda.blockIdx.y, num_heads + num_kv_heads, cuda.gridDim.y):
            start = head * head_dim
            squares = f32(0.0)
            for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                squares += widen(qkv[row, start + i]) * widen(qkv[row, start + i])
            mean = block_sum(squares, scratch) / f32(head_dim)
            scale = f32(1.0) / f32(math.sqrt(mean + eps))
            if head < num_heads:
                for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                    qkv[row, start + i] = narrow(widen(qkv[row, start + i]) * (scale * q_weight[i]), qkv)
            else:
                for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                    qkv[row, start + i] = narrow(widen(qkv[row, start + i]) * (scale * k_weight[i]), qkv)
