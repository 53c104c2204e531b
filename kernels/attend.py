"""Attention of steps with many rows over paged keys: prompts, and whatever comes with them.

A block takes sixteen pairs of a query row of a request and a query head of a kv head over all their keys, a chunk at a time, with a
running softmax (FlashAttention, Dao, Fu, Ermon, Rudra and Ré, 2022).
"""

from __future__ import annotations

from typing import Any

from kernels.attend_tile import PAIRS, RING, SLAB, attend_scores, attend_values, fetch_keys, fetch_values
from kernels.exponential import exp
from kernels.lang import NEG_INF, SIMULATED, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, primitive, warp_max, warp_size, warp_sum
from kernels.project import ceil_div, divide

if not SIMULATED:
    import kernels.attend_rows_gpu as attend_rows_gpu

CHUNK_KEYS = 64
"""Keys of a chunk: its keys and values fit into shared memory together."""

BLOCK_PAIRS = 64
"""Pairs that a block of the GPU's form takes: sixteen of each of four warps."""

NARROW_HEAD = 64
"""Longest head that `attend_rows` takes on a GPU in 16 bits; `attend_wide_rows` has registers for more."""

MAX_HEAD_DIM = 128
"""Longest head: a block's sums, and the keys and values that are under way to it, fill its shared memory."""

_UNITS = 4  # warps that sum values; their sums [_UNITS, PAIRS, SLAB] take the place of the keys, once these were used
_REGISTERS = 128  # four blocks on a multiprocessor
_SCORES = PAIRS * CHUNK_KEYS
_RUNNING = PAIRS * MAX_HEAD_DIM


@device_function
def chunk_softmax(scores, largest, normalizer, positions, token, group, first_pair, pairs, start, keys, scale, warp, warps):
    """Scores -> shares exp(s - max) of each pair, 0 for keys that its row does not see; its maximum and its sum of shares."""
    p = i32(warp)
    while p < pairs:
        seen = min(positions[token + divide(first_pair + p, group)] - start + i32(1), keys)
        top = NEG_INF
        for key in range(lane(), seen, warp_size()):
            top = max(top, scores[p * i32(CHUNK_KEYS) + key] * scale)
        top = warp_max(top)
        total = f32(0.0)
        for key in range(lane(), CHUNK_KEYS, warp_size()):
            share = f32(0.0)
            if key < seen:
                share = exp(scores[p * i32(CHUNK_KEYS) + key] * scale - top)
            scores[p * i32(CHUNK_KEYS) + key] = share
            total += share
        total = warp_sum(total)
        if lane() == 0:
            largest[p] = top
            normalizer[p] = total
        p += warps


@device_function
def chunk_total(sums, parts, slabs, p, d):
    """The weighted sum of values of pair p in dim d: over the parts of a chunk, in order."""
    slab = divide(d, i32(SLAB))
    total = f32(0.0)
    for part in range(parts):
        unit = i32(part) * slabs + slab
        total += sums[(unit * i32(PAIRS) + p) * i32(SLAB) + d - slab * i32(SLAB)]
    return total


def _gpu_rows(out: Any, query: Any, k_cache: Any, *rest: Any) -> Any:
    return attend_rows_gpu.ROWS.get(str(k_cache.dtype)) if str(query.dtype) == str(k_cache.dtype) else None


def _gpu_wide_rows(out: Any, query: Any, k_cache: Any, *rest: Any) -> Any:
    return attend_rows_gpu.WIDE_ROWS.get(str(k_cache.dtype)) if str(query.dtype) == str(k_cache.dtype) else None


def _gpu_has_rows(query: Any, k_cache: Any) -> Any:
    return attend_rows_gpu.yes if _gpu_rows(None, query, k_cache) else None


@primitive(_gpu_has_rows)
def has_tensor_rows(query, k_cache):
    """Do `tensor_rows` and `tensor_wide_rows` do all the work?"""
    return False


@primitive(_gpu_rows)
def tensor_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, keys,
    values, stats,
):  # fmt: skip
    """What `attend_requests` does, on a GPU with queries and a cache in 16 bits, for hd = 64; nothing elsewhere.

    keys, values: float32 shared [RING]; stats: float32 shared [PAIRS * CHUNK_KEYS].
    """


@primitive(_gpu_wide_rows)
def tensor_wide_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, keys,
    values, stats,
):  # fmt: skip
    """The same for hd = 128."""


@device_function
def attend_requests(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, scores,
    sums, value_ring, largest, normalizer, running, running_largest, running_normalizer,
):  # fmt: skip
    """What the kernel does where there is no `tensor_rows`, in its shared memory."""
    num_kv_heads, head_dim = i32(k_cache.shape[2]), i32(k_cache.shape[3])
    group = divide(num_heads, num_kv_heads)
    tid = i32(cuda.threadIdx.x)
    warp, warps = divide(tid, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    slabs = ceil_div(head_dim, i32(SLAB))
    parts = max(divide(min(warps, i32(_UNITS)), slabs), i32(1))
    share_keys = ceil_div(i32(CHUNK_KEYS // 16), parts) * i32(16)
    request = i32(cuda.blockIdx.z)
    while request < num_requests[0]:
        token, slot = query_start_loc[request], idx_mapping[request]
        rows = query_start_loc[request + 1] - token
        kv_head = i32(cuda.blockIdx.y)
        while kv_head < num_kv_heads:
            first_pair = i32(cuda.blockIdx.x * PAIRS)
            while first_pair < rows * group:
                pairs = min(rows * group - first_pair, i32(PAIRS))
                last_row = divide(first_pair + pairs - i32(1), group)
                num_keys = positions[token + last_row] + i32(1)
                item = tid
                while item < pairs * head_dim:
                    running[item] = f32(0.0)
                    item += i32(cuda.blockDim.x)
                p = tid
                while p < pairs:
                    running_largest[p] = NEG_INF
                    running_normalizer[p] = f32(0.0)
                    p += i32(cuda.blockDim.x)
                start = i32(0)
                while start < num_keys:
                    keys = min(num_keys - start, i32(CHUNK_KEYS))
                    fetch_keys(sums, k_cache, block_tables, slot, kv_head, start, keys, warp, warps)
                    fetch_values(
                        value_ring, v_cache, block_tables, slot, kv_head, start, share_keys, keys, slabs, parts, warp, warps
                    )
                    attend_scores(
                        scores,
                        i32(CHUNK_KEYS),
                        sums,
                        query,
                        k_cache,
                        block_tables,
                        slot,
                        kv_head,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    chunk_softmax(
                        scores,
                        largest,
                        normalizer,
                        positions,
                        token,
                        group,
                        first_pair,
                        pairs,
                        start,
                        keys,
                        scale,
                        warp,
                        warps,
                    )
                    cuda.syncthreads()
                    unit = i32(warp)
                    while unit < slabs * parts:
                        part = divide(unit, slabs)
                        attend_values(
                            sums,
                            unit,
                            scores,
                            i32(CHUNK_KEYS),
                            value_ring,
                            v_cache,
                            block_tables,
                            slot,
                            kv_head,
                            pairs,
                            start,
                            part * share_keys,
                            (part + i32(1)) * share_keys,
                            keys,
                            (unit - part * slabs) * i32(SLAB),
                        )
                        unit += warps
                    cuda.syncthreads()
                    item = tid
                    while item < pairs * head_dim:
                        p = divide(item, head_dim)
                        d = item - p * head_dim
                        top = max(running_largest[p], largest[p])
                        total = running[item] * exp(running_largest[p] - top)
                        total += chunk_total(sums, parts, slabs, p, d) * exp(largest[p] - top)
                        running[item] = total
                        item += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    p = tid
                    while p < pairs:
                        top = max(running_largest[p], largest[p])
                        kept = running_normalizer[p] * exp(running_largest[p] - top)
                        running_normalizer[p] = kept + normalizer[p] * exp(largest[p] - top)
                        running_largest[p] = top
                        p += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    start += i32(CHUNK_KEYS)
                item = tid
                while item < pairs * head_dim:
                    p = divide(item, head_dim)
                    row = divide(first_pair + p, group)
                    head = kv_head * group + first_pair + p - row * group
                    column = head * head_dim + item - p * head_dim
                    out[token + row, column] = narrow(running[item] * (f32(1.0) / running_normalizer[p]), out)
                    item += i32(cuda.blockDim.x)
                cuda.syncthreads()
                first_pair += i32(cuda.gridDim.x * PAIRS)
            kv_head += i32(cuda.gridDim.y)
        request += i32(cuda.gridDim.z)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True)
def attend_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests
):
    """out[t, h] = softmax(scale * q[t, h] . K) V over the keys 0..positions[t] of the row's request, for the live requests.

    The rows fill the GPU, so keys are not split and nothing is combined. Keys and values are read once for every sixteen pairs,
    mostly from L2.

    Args:
        out: [T, nh * hd], any storage type.
        query: [T, nh * hd], rotated queries.
        k_cache, v_cache: [blocks, block_size, nkv, hd], the step's own keys included (kernels/rotate.py); hd <= MAX_HEAD_DIM,
            and 64 on a GPU in 16 bits.
        block_tables: int32 [N, B]; an entry below 0 is read as block 0 (its row is thrown away).
        positions: int32 [T], ascending within a request.
        idx_mapping: int32 [R], slot of a request.
        query_start_loc: int32 [R + 1], rows of request r: query_start_loc[r] .. query_start_loc[r + 1].
        num_heads: int32.
        scale: float32.
        num_requests: int32 [1], live requests.

    Launch: any grid of up to three axes, four warps. On a GPU in 16 bits: (tiles of BLOCK_PAIRS pairs over all requests, kv heads)
    at best, clusters of any size; elsewhere (rows * group / PAIRS, kv heads, requests). Barriers are reached by all threads of a
    cluster: loops depend on blockIdx and device state alone. Safe under capture. Oracle: oracle_fused.attend.
    """
    scores = cuda.shared.array(_SCORES, f32)
    sums = cuda.shared.array(RING, f32)
    value_ring = cuda.shared.array(RING, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    running = cuda.shared.array(_RUNNING, f32)
    running_largest = cuda.shared.array(PAIRS, f32)
    running_normalizer = cuda.shared.array(PAIRS, f32)
    wait_for_launches()
    let_next_launch_start()
    if has_tensor_rows(query, k_cache):
        tensor_rows(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            sums, value_ring, scores,
        )  # fmt: skip
    else:
        attend_requests(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            scores, sums, value_ring, largest, normalizer, running, running_largest, running_normalizer,
        )  # fmt: skip


@kernel(writes=("out",), overlap=True)
def attend_wide_rows(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests
):
    """`attend_rows`, whose 16-bit form on a GPU takes heads of 128 dims, with the registers that these need.

    Args: as in `attend_rows`. Launch and ownership as there. Oracle: oracle_fused.attend.
    """
    scores = cuda.shared.array(_SCORES, f32)
    sums = cuda.shared.array(RING, f32)
    value_ring = cuda.shared.array(RING, f32)
    largest = cuda.shared.array(PAIRS, f32)
    normalizer = cuda.shared.array(PAIRS, f32)
    running = cuda.shared.array(_RUNNING, f32)
    running_largest = cuda.shared.array(PAIRS, f32)
    running_normalizer = cuda.shared.array(PAIRS, f32)
    wait_for_launches()
    let_next_launch_start()
    if has_tensor_rows(query, k_cache):
        tensor_wide_rows(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            sums, value_ring, scores,
        )  # fmt: skip
    else:
        attend_requests(
            out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests,
            scores, sums, value_ring, largest, normalizer, running, running_largest, running_normalizer,
        )  # fmt: skip
