"""Attention of a draft block's few query rows over the request's paged context and over the block itself."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.exponential import exp
from kernels.lang import MAX_THREADS, NEG_INF, block_max, block_sum, cuda, f32, i32, kernel
from kernels.lang_storage import narrow, widen

_CHUNK = 128
"""Keys between two rescalings of the accumulator."""


@kernel(writes=("out",))
def block_attention(
    out,
    qkv,
    cache,
    block_tables,
    idx_mapping,
    context_lens,
    block_lens,
    layer,
    num_heads,
    window,
    causal,
    scale,
    num_tokens,
):
    """out[row, h] = softmax(scale * q . K) V over the cached context and the block's own keys, for the live query rows.

    The keys of a request are its context (positions 0..C-1, C = context_lens[r], in the cache) and its block (positions C..C+n-1,
    n = block_lens[r], in qkv: the block's keys and values are never stored, so that none survives into the next step). Row i of
    a block stands at position p = C + i and sees the key at position j if j <= p where `causal`, and if |p - j| < window where
    window > 0. Without either, every row of a block sees the same keys, in both directions. A row that sees no key gives 0.

    Args:
        out: [R * Q, num_heads * hd], any storage type.
        qkv: float32 [R * Q, (num_heads + 2 * num_kv_heads) * hd], after bias, norm and rotation.
        cache: any storage type [layers, 2, blocks, block_size, num_kv_heads, hd], hd <= MAX_HEAD_DIM.
        block_tables: int32 [N, B]; a negative entry is read as block 0 (a row that lost its blocks: its result is thrown away).
        idx_mapping, context_lens, block_lens: int32 [R].
        layer: int32, draft layer.
        num_heads: int32.
        window: int32 in positions, 0 = none.
        causal: int32, 0 or 1.
        scale: float32, usually hd ** -0.5.
        num_tokens: int32 [1], live query rows.

    Launch: grid (query rows, heads), a block a query head; about hd threads, which share out the keys of a chunk, then hd. Block
    (t, h) owns head h of out[t]; barriers are reached by all its threads. Safe under capture.
    Oracle: oracle_dflash.block_attention.
    """
    query = cuda.shared.array(MAX_HEAD_DIM, f32)
    total = cuda.shared.array(MAX_HEAD_DIM, f32)
    weight = cuda.shared.array(_CHUNK, f32)
    block_of = cuda.shared.array(_CHUNK, i32)
    offset_of = cuda.shared.array(_CHUNK, i32)
    scratch = cuda.shared.array(MAX_THREADS, f32)
    block_size, num_kv_heads, head_dim = cache.shape[3], cache.shape[4], cache.shape[5]
    queries = out.shape[0] // context_lens.shape[0]
    group = num_heads // num_kv_heads
    tid = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        request = row // queries
        slot = max(idx_mapping[request], 0)
        context = context_lens[request]
        position = context + row % queries
        first = 0
        end = context + block_lens[request]
        if window > 0:
            first = max(position - window + 1, 0)
            end = min(end, position + window)
        if causal > 0:
            end = min(end, position + 1)
        for head in range(cuda.blockIdx.y, num_heads, cuda.gridDim.y):
            kv_head = head // group
            block_key = (num_heads + kv_head) * head_dim
            block_value = block_key + num_kv_heads * head_dim
            for d in range(tid, head_dim, cuda.blockDim.x):
                query[d] = qkv[row, head * head_dim + d] * scale
                total[d] = f32(0.0)
            largest = NEG_INF
            normalizer = f32(0.0)
            cuda.syncthreads()
            for start in range(first, end, _CHUNK):
                keys = min(end - start, _CHUNK)
                chunk_largest = NEG_INF
                for key in range(tid, keys, cuda.blockDim.x):
                    at = start + key
                    score = f32(0.0)
                    if at < context:
                        block = max(block_tables[slot, at // block_size], 0)
                        offset = at % block_size
                        for d in range(head_dim):
                            score += query[d] * widen(cache[layer, 0, block, offset, kv_head, d])
                        block_of[key] = block
                        offset_of[key] = offset
                    else:
                        source = request * queries + at - context
                        for d in range(head_dim):
                            score += query[d] * qkv[source, block_key + d]
                        block_of[key] = -1
                        offset_of[key] = source
                    weight[key] = score
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
                    if block >= 0:
                        for d in range(tid, head_dim, cuda.blockDim.x):
                            total[d] += share * widen(cache[layer, 1, block, offset, kv_head, d])
                    else:
                        for d in range(tid, head_dim, cuda.blockDim.x):
                            total[d] += share * qkv[offset, block_value + d]
                cuda.syncthreads()
            for d in range(tid, head_dim, cuda.blockDim.x):
                out[row, head * head_dim + d] = narrow(total[d] / normalizer if end > first else f32(0.0), out)
            cuda.syncthreads()
