"""Keys and values of new context tokens into the paged caches of all draft layers at once."""

from __future__ import annotations

import math

from kernels.lang import MAX_THREADS, block_sum, cuda, f32, kernel


@kernel(writes=("cache",))
def store_context(cache, context_kv, k_norms, rope_table, positions, cells, eps, num_tokens):
    """cache[l, 0 or 1, cell of t] = rotated RMSNorm(k) or v of token t in draft layer l, for the live tokens with a cell.

    Args:
        cache: float32 [layers, 2, blocks, block_size, kv_heads, hd]: keys, then values.
        context_kv: float32 [T, layers * 2 * kv_heads * hd]: for each layer its k heads, then its v heads, as one product made them.
        k_norms: float32 [layers, hd].
        rope_table: float32 [L, hd], cos then sin (kernels/rope.py).
        positions: int32 [T], absolute, each in [0, L).
        cells: int32 [T], block * block_size + offset; negative stores nothing. No two live tokens share one.
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, layers * kv heads), a block a head; about hd / 2 threads. Block (t, y) owns head y of the cell of token t;
    its barriers are reached by all its threads, since the cell is the same for all of them. Safe under capture, and idempotent.
    Oracle: oracle_dflash.store_context.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    num_layers, block_size, num_kv_heads, head_dim = cache.shape[0], cache.shape[3], cache.shape[4], cache.shape[5]
    half = head_dim // 2
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        cell = cells[row]
        if cell >= 0:
            block = cell // block_size
            offset = cell % block_size
            position = positions[row]
            for head_of_all in range(cuda.blockIdx.y, num_layers * num_kv_heads, cuda.gridDim.y):
                layer = head_of_all // num_kv_heads
                head = head_of_all % num_kv_heads
                key = (layer * 2 * num_kv_heads + head) * head_dim
                value = key + num_kv_heads * head_dim
                squares = f32(0.0)
                for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                    squares += context_kv[row, key + i] * context_kv[row, key + i]
                mean = block_sum(squares, scratch) / f32(head_dim)
                scale = f32(1.0) / f32(math.sqrt(mean + eps))
                for i in range(cuda.threadIdx.x, half, cuda.blockDim.x):
                    cosine = rope_table[position, i]
                    sine = rope_table[position, half + i]
                    first = context_kv[row, key + i] * scale * k_norms[layer, i]
                    second = context_kv[row, key + half + i] * scale * k_norms[layer, half + i]
                    cache[layer, 0, block, offset, head, i] = first * cosine - second * sine
                    cache[layer, 0, block, offset, head, half + i] = second * cosine + first * sine
                for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                    cache[layer, 1, block, offset, head, i] = context_kv[row, value + i]
