"""Causal attention of the step's query rows over the paged cache, grouped-query heads, online softmax.

Softmax in one pass over chunks of keys: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); paged keys and
values: Kwon et al., "PagedAttention" (2023).
"""

from __future__ import annotations

from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, block_max, block_sum, cuda, f32, i32, kernel
from kernels.lang_storage import narrow, widen

MAX_HEAD_DIM = 256
"""Longest head: query and accumulator live in shared memory."""

_CHUNK = 128
"""Keys between two rescalings of the accumulator."""


@kernel(writes=("out",))
def paged_attention(out, qkv, k_cache, v_cache, block_tables, token_slot, positions, num_heads, scale, num_tokens):
    """out[t, h] = softmax(scale * q[t, h] . K) V over the keys 0..positions[t] of the token's slot, for the live tokens.

    The step's own keys must be in the cache already (kernels/kv_store.py): a row sees itself. Query head h reads kv head
    h // (num_heads / num_kv_heads). A negative table entry is read as block 0: only a row that is past max_model_len or has lost
    its blocks meets one, its result is thrown away, and it must not read outside the cache.

    Args:
        out: [T, num_heads * hd], any storage type.
        qkv: [T, (num_heads + 2 * num_kv_heads) * hd], any storage type; only q is read.
        k_cache, v_cache: [blocks, block_size, num_kv_heads, hd], any storage type, hd <= MAX_HEAD_DIM.
        block_tables: int32 [N, B], cache block of each block_size positions of a slot.
        token_slot: int32 [T], in [0, N).
        positions: int32 [T], in [0, B * block_size).
        num_heads: int32.
        scale: float32, usually hd ** -0.5.
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, heads), a block a query head; about head_dim threads. Threads go over the keys of a chunk for the scores
    and over head_dim for the weighted sum, so that at <<<1, 1>>> both inner loops run along head_dim, contiguous in memory.
    Block (t, h) owns head h of out[t]; barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_forward.paged_attention.
    """
    query = cuda.shared.array(MAX_HEAD_DIM, f32)
    total = cuda.shared.array(MAX_HEAD_DIM, f32)
    weight = cuda.shared.array(_CHUNK, f32)
    block_of = cuda.shared.array(_CHUNK, i32)
    offset_of = cuda.shared.array(_CHUNK, i32)
    scratch = cuda.shared.array(MAX_THREADS, f32)
    block_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    group = num_heads // num_kv_heads
    tid = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        slot = token_slot[row]
        num_keys = positions[row] + 1
        for head in range(cuda.blockIdx.y, num_heads, cuda.gridDim.y):
            kv_head = head // group
            for d in range(tid, head_dim, cuda.blockDim.x):
                query[d] = widen(qkv[row, head * head_dim + d]) * scale
                total[d] = f32(0.0)
            largest = NEG_INF
            normalizer = f32(0.0)
            cuda.syncthreads()
            for start in range(0, num_keys, _CHUNK):
                keys = min(num_keys - start, _CHUNK)
                chunk_largest = NEG_INF
                for key in range(tid, keys, cuda.blockDim.x):
                    block = max(block_tables[slot, (start + key) // block_size], 0)
                    offset = (start + key) % block_size
                    score = f32(0.0)
                    for d in range(head_dim):
                        score += query[d] * widen(k_cache[block, offset, kv_head, d])
                    weight[key] = score
                    block_of[key] = block
                    offset_of[key] = offset
                    chunk_largest = max(chunk_largest, score)
                before = largest
                largest = max(largest, block_max(chunk_largest, scratch))
                chunk_sum = f32(0.0)
                for key in range(tid, keys, cuda.blockDim.x):
                    weight[key] = exp(weight[key] - largest)
                    chunk_sum += weight[key]
                keep = exp(before - largest)
                normalizer = normalizer * keep + block_sum(chunk_sum, scratch)
                for d in range(tid, head_dim, cuda.blockDim.x):
                    total[d] *= keep
                for key in range(keys):
                    block = block_of[key]
                    offset = offset_of[key]
                    share = weight[key]
                    for d in range(tid, head_dim, cuda.blockDim.x):
                        total[d] += share * widen(v_cache[block, offset, kv_head, d])
                cuda.syncthreads()
            for d in range(tid, head_dim, cuda.blockDim.x):
                out[row, head * head_dim + d] = narrow(total[d] / normalizer, out)
            cuda.syncthreads()
