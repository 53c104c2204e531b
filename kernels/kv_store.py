"""Write the new keys and values of a step into the paged cache."""

from __future__ import annotations

from kernels.lang import cuda, kernel, u64
from kernels.lang_storage import narrow, widen
from kernels.rotate import kept


@kernel(writes=("k_cache", "v_cache"))
def store_kv(k_cache, v_cache, qkv, slot_mapping, num_heads, num_tokens):
    """Cache entry slot_mapping[t] = k and v of token t (`kept` of kernels/rotate.py), for the live tokens; -1 stores nothing.

    Args:
        k_cache, v_cache: [blocks, block_size, num_kv_heads, hd], any storage type.
        qkv: [T, (num_heads + 2 * num_kv_heads) * hd], after bias, norm and rotation.
        slot_mapping: int32 [T], block * block_size + offset, or -1 (a token past max_model_len, or one without a block). No two
            live tokens share an entry >= 0, otherwise the last writer would be random.
        num_heads: int32.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, kv heads), threads over head_dim. Block (t, h) owns head h of the entry of token t. No barrier; safe
    under capture, and idempotent. Oracle: oracle_forward.store_kv.
    """
    block_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        entry = slot_mapping[row]
        if entry >= 0:
            block = entry // block_size
            offset = entry % block_size
            for head in range(cuda.blockIdx.y, num_kv_heads, cuda.gridDim.y):
                key = (num_heads + head) * head_dim
                value = (num_heads + num_kv_heads + head) * head_dim
                for i in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
                    held, number = kept(widen(qkv[row, u64(key + i)]), widen(qkv[row, u64(value + i)]), v_cache)
                    k_cache[block, offset, head, i] = narrow(held, k_cache)
                    v_cache[block, offset, head, i] = narrow(number, v_cache)
