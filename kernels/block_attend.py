"""Attention of draft blocks, from the projection on: one launch that rotates, and attends to the paged context and the block.

As kernels/attend_step.py, whose tiles of pairs and of keys and whose clusters these are on a GPU; but the rows of a block see each
other, and its keys and values never reach the cache, so that none survives into the next step.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_step import MAX_HEAD_DIM, MOST_WARPS, PAIRS, WARPS, ring_bytes
from kernels.exponential import exp
from kernels.lang import NEG_INF, SIMULATED, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.project import divide
from kernels.rotate import head_scale, rotate_head

if not SIMULATED:
    import kernels.block_attend_gpu as block_attend_gpu

CLUSTER = 4
"""Blocks that share the keys of a tile of pairs."""

_SUMS = WARPS * MAX_HEAD_DIM
_QUERIES = PAIRS * MAX_HEAD_DIM + 4
_STATS = 2 * MOST_WARPS * PAIRS + 4
_REGISTERS = 168  # three blocks on a multiprocessor
_EARLY = ("k_cache", "v_cache", "block_tables", "idx_mapping", "context_lens", "block_lens", "num_requests")


def _gpu_block(out: Any, k_cache: Any, *rest: Any) -> Any:
    return block_attend_gpu.BLOCK.get(str(k_cache.dtype))


def _gpu_has_block(k_cache: Any) -> Any:
    return block_attend_gpu.yes if str(k_cache.dtype) in block_attend_gpu.BLOCK else None


@primitive(_gpu_has_block)
def has_tensor_block(k_cache):
    """Does `tensor_block` do all the work?"""
    return False


@primitive(_gpu_block)
def tensor_block(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps, window,
    causal, scale, num_requests, ring, queries, stats,
):  # fmt: skip
    """What `attend_blocks` does, on a GPU with a cache in 16 bits, for hd = 64 or 128; nothing elsewhere."""


@device_function
def attend_pair(
    ring, queries, out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot, token, row, head, kv_head, num_heads,
    context, length, eps, window, causal, scale, warp,
):  # fmt: skip
    """One query head of row `row` of the block that begins at row `token` of qkv, by one warp."""
    block_size, kv_heads, head_dim = i32(k_cache.shape[1]), i32(k_cache.shape[2]), i32(k_cache.shape[3])
    half, at = head_dim // i32(2), warp * i32(MAX_HEAD_DIM)
    # A row behind the model length stands where the last one does: nobody looks at what it yields.
    keys = max(context + length, i32(1))
    position, begin, end = min(context + row, keys - i32(1)), i32(0), i32(keys)
    if causal > i32(0):
        end = position + i32(1)
    if window > i32(0):
        begin, end = max(position - window + i32(1), i32(0)), min(end, position + window)
    start, key_start = head * head_dim, (num_heads + kv_head) * head_dim
    value_start = key_start + kv_heads * head_dim
    weight = head_scale(qkv, q_gain, token + row, start, head_dim, eps)
    for i in range(lane(), half, warp_size()):
        first, second = rotate_head(qkv, table, token + row, start, position, i, half, weight, q_gain)
        queries[at + i] = widen(narrow(first, k_cache))
        queries[at + half + i] = widen(narrow(second, k_cache))
        ring[at + i] = f32(0.0)
        ring[at + half + i] = f32(0.0)
    top, total = NEG_INF, f32(0.0)
    for key in range(begin, end):
        score, other = f32(0.0), token + i32(key) - context
        page = divide(i32(key), block_size)
        block, offset = i32(0), i32(key) - page * block_size
        if key < context:
            block = max(block_tables[slot, page], i32(0))
            for i in range(lane(), half, warp_size()):
                score += queries[at + i] * widen(k_cache[block, offset, kv_head, i])
                score += queries[at + half + i] * widen(k_cache[block, offset, kv_head, half + i])
        else:
            weight = head_scale(qkv, k_gain, other, key_start, head_dim, eps)
            for i in range(lane(), half, warp_size()):
                first, second = rotate_head(qkv, table, other, key_start, i32(key), i, half, weight, k_gain)
                score += queries[at + i] * widen(narrow(first, k_cache))
                score += queries[at + half + i] * widen(narrow(second, k_cache))
        score = warp_sum(score) * scale
        highest = max(top, score)
        keep, share = exp(top - highest), exp(score - highest)
        total = total * keep + share
        for i in range(lane(), half, warp_size()):
            if key < context:
                first, second = widen(v_cache[block, offset, kv_head, i]), widen(v_cache[block, offset, kv_head, half + i])
            else:
                first = widen(narrow(widen(qkv[other, value_start + i]), k_cache))
                second = widen(narrow(widen(qkv[other, value_start + half + i]), k_cache))
            ring[at + i] = ring[at + i] * keep + share * first
            ring[at + half + i] = ring[at + half + i] * keep + share * second
        top = highest
    for i in range(lane(), half, warp_size()):
        out[token + row, start + i] = narrow(ring[at + i] / total, out)
        out[token + row, start + half + i] = narrow(ring[at + half + i] / total, out)


@device_function
def attend_blocks(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps, window,
    causal, scale, num_requests, ring, queries,
):  # fmt: skip
    """`block_attend` where there is no `tensor_block`."""
    wait_for_launches()
    let_next_launch_start()
    kv_heads, rows = i32(k_cache.shape[2]), divide(i32(out.shape[0]), i32(context_lens.shape[0]))
    group = divide(num_heads, kv_heads)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    warps = min(warps, i32(WARPS))
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        slot, context, length = max(idx_mapping[request], i32(0)), context_lens[request], block_lens[request]
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < kv_heads:
            pair = i32(cuda.blockIdx.x * warps + warp)
            while warp < warps and pair < rows * group:
                row = divide(pair, group)
                attend_pair(
                    ring, queries, out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot, request * rows, row,
                    kv_head * group + pair - row * group, kv_head, num_heads, context, length, eps, window, causal, scale, warp,
                )  # fmt: skip
                pair += i32(cuda.gridDim.x * warps)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=_EARLY, cluster=CLUSTER, shared=ring_bytes(MOST_WARPS))
def block_attend(
    out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps, window,
    causal, scale, num_requests,
):  # fmt: skip
    """What kernels/block_attention.py computes, of heads that are normalised and rotated here, for the live requests.

    Args:
        out: [R * Q, nh * hd], any storage type.
        k_cache, v_cache: [blocks, block_size, nkv, hd] of one draft layer, hd <= MAX_HEAD_DIM: the context.
        qkv: [R * Q, (nh + 2 nkv) * hd], any storage type, bias included: row i of a block stands at context + i.
        q_gain, k_gain: float32 [hd].
        table: float32 [L, hd], cos | sin (kernels/rope.py).
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        idx_mapping, context_lens, block_lens: int32 [R] (kernels/block_inputs.py); context + length <= L.
        num_heads: int32.
        eps: float32.
        window: int32 in positions, 0 = none.
        causal: int32, 0 or 1.
        scale: float32.
        num_requests: int32 [1], live requests.

    Launch: grid (tiles of pairs, kv heads, requests), any of them, eight warps at most; a GPU makes a cluster of each tile.
    Barriers are reached by all threads of a cluster: loops depend on blockIdx and device state alone. Safe under capture, and
    idempotent.
    Oracle: oracle_dflash.block_attend.
    """
    ring = cuda.shared.array(0, f32)
    sums = cuda.shared.array(_SUMS, f32)
    queries = cuda.shared.array(_QUERIES, f32)
    stats = cuda.shared.array(_STATS, f32)
    if has_tensor_block(k_cache):
        tensor_block(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps,
            window, causal, scale, num_requests, ring, queries, stats,
        )  # fmt: skip
    else:
        attend_blocks(
            out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps,
            window, causal, scale, num_requests, sums, queries,
        )  # fmt: skip
