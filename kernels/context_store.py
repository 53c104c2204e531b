"""Keys and values of new context tokens into the paged caches of all draft layers at once."""

from __future__ import annotations

import math

from kernels.lang import cuda, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_size, warp_sum
from kernels.project import divide
from kernels.rotate import kept


@kernel(writes=("cache",), overlap=True)
def store_context(
    cache, context_kv, k_norms, rope_table, positions, token_slot, slot_mapping, num_computed, finished, eps, num_tokens
):
    """cache[l, 0 or 1, cell of t] = rotated RMSNorm(k) or v of token t in draft layer l, for the live tokens committed by now.

    Committed is what stands below num_computed of its slot, behind `advance`: neither a rejected draft nor the new anchor, which
    has no row yet. Nothing is stored for a finished request.

    Args:
        cache: any storage type [layers, 2, blocks, block_size, kv_heads, hd]: keys, then values.
        context_kv: float32 [T, layers * 2 * kv_heads * hd]: for each layer its k heads, then its v heads, as one product made them.
        k_norms: float32 [layers, hd].
        rope_table: float32 [L, hd], cos then sin (kernels/rope.py).
        positions: int32 [T], absolute, each in [0, L).
        token_slot: int32 [T];  slot_mapping: int32 [T], block * block_size + offset (kernels/prepare.py); negative stores nothing.
            No two live tokens share one. The drafter's pages follow the target's tables.
        num_computed, finished: int32 [N] by slot.
        eps: float32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n), a warp a head, n * warps about layers * kv heads. A warp owns its head of the cell of its token. No
    barrier; safe under capture, and idempotent. Oracle: oracle_context.store_context.
    Method: z-lab's crop of the draft cache, as a store that never happens.
    """
    wait_for_launches()
    let_next_launch_start()
    num_layers, block_size = i32(cache.shape[0]), i32(cache.shape[3])
    num_kv_heads, head_dim = i32(cache.shape[4]), i32(cache.shape[5])
    half = head_dim // i32(2)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_tokens[0]:
        cell, slot, position = slot_mapping[row], token_slot[row], positions[row]
        committed = i32(0)
        if slot >= 0 and slot < num_computed.shape[0] and cell >= 0 and finished[slot] == 0:
            committed = num_computed[slot]
        if position < committed:
            block = divide(cell, block_size)
            offset = cell - block * block_size
            head_of_all = i32(cuda.blockIdx.y * warps + warp)
            while head_of_all < num_layers * num_kv_heads:
                layer = divide(head_of_all, num_kv_heads)
                head = head_of_all - layer * num_kv_heads
                key = (layer * i32(2) * num_kv_heads + head) * head_dim
                value = key + num_kv_heads * head_dim
                squares = f32(0.0)
                for i in range(lane(), head_dim, warp_size()):
                    squares += context_kv[row, key + i] * context_kv[row, key + i]
                scale = f32(1.0) / f32(math.sqrt(warp_sum(squares) / f32(head_dim) + eps))
                for i in range(lane(), half, warp_size()):
                    cosine = rope_table[position, i]
                    sine = rope_table[position, half + i]
                    first = context_kv[row, key + i] * scale * k_norms[layer, i]
                    second = context_kv[row, key + half + i] * scale * k_norms[layer, half + i]
                    near, near_value = kept(first * cosine - second * sine, context_kv[row, value + i], cache)
                    far, far_value = kept(second * cosine + first * sine, context_kv[row, value + half + i], cache)
                    cache[layer, 0, block, offset, head, i] = narrow(near, cache)
                    cache[layer, 0, block, offset, head, half + i] = narrow(far, cache)
                    cache[layer, 1, block, offset, head, i] = narrow(near_value, cache)
                    cache[layer, 1, block, offset, head, half + i] = narrow(far_value, cache)
                head_of_all += i32(cuda.gridDim.y * warps)
        row += i32(cuda.gridDim.x)
