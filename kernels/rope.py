"""Rotary position embedding (Su et al., 2021) in the NeoX form: the first half of a head turns against the second half."""

from __future__ import annotations

from kernels.lang import cuda, kernel, u64
from kernels.lang_storage import narrow, widen


@kernel(writes=("qkv",))
def rope(qkv, table, positions, num_heads, num_kv_heads, num_tokens):
    """Rotate each q and k head of the live tokens in place by the angles of its position; v is left alone.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * hd], any storage type, heads of q, then k, then v; updated in place.
        table: float32 [L, hd]: row p holds cos of the hd/2 angles of position p, then their sin. Frequency scaling (linear, llama3,
            YaRN) is in the table, so the kernel knows nothing of it.
        positions: int32 [T], each in [0, L).
        num_heads, num_kv_heads: int32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, heads), a block a head, threads over its hd/2 pairs. A thread owns both ends of a pair, so the rotation
    in place needs no barrier. Safe under capture, and not idempotent. Oracle: oracle_forward.rope.
    """
    head_dim = table.shape[1]
    half = head_dim // 2
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        position = positions[row]
        for head in range(cuda.blockIdx.y, num_heads + num_kv_heads, cuda.gridDim.y):
            start = head * head_dim
            for i in range(cuda.threadIdx.x, half, cuda.blockDim.x):
                cosine = table[position, i]
                sine = table[position, u64(half + i)]
                first = widen(qkv[row, u64(start + i)])
                second = widen(qkv[row, u64(start + half + i)])
                qkv[row, u64(start + i)] = narrow(first * cosine - second * sine, qkv)
                qkv[row, u64(start + half + i)] = narrow(second * cosine + first * sine, qkv)
