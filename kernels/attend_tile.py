"""Attention of many rows in the form of every machine (kernels/attend.py): sixteen pairs over a chunk of paged keys at a time.

A pair is one query row of a request with one of the query heads that share a kv head: up to sixteen pairs go over the same keys.
"""

from __future__ import annotations

from typing import Any

from kernels.exponential import exp
from kernels.lang import NEG_INF, cuda, device_function, f32, i32
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import lane, primitive, warp_max, warp_size, warp_sum
from kernels.project import ceil_div, divide

PAIRS = 16
"""Pairs that go over a chunk together."""

SLAB = 64
"""Dims of a head that one warp sums up."""

CHUNK_KEYS = 64
"""Keys of a chunk."""

MAX_HEAD_DIM = 128
"""Longest head: a block's sums fill its shared memory."""

_UNITS = 4  # warps that sum values
SCORES = PAIRS * CHUNK_KEYS
SUMS = _UNITS * PAIRS * SLAB
RUNNING = PAIRS * MAX_HEAD_DIM


def _no_form(*types: Any) -> None:
    """Primitives without a GPU's form are what a CPU may add up in another order."""


@primitive(_no_form)
def attend_scores(
    scores, width, query, k_cache, block_tables, slot, kv_head, token, group, first_pair, pairs, start, keys, warp, warps
):
    """scores[p * width + j] = q of pair first_pair + p . k of key start + j, for p < pairs, j < keys. Called by `warps` warps.

    Args:
        scores: float32 shared [PAIRS * width].
        width: int32, at least `keys`.
        query: [T, nh * hd], rotated.
        k_cache: [blocks, block_size, nkv, hd], of the type of `query`.
        block_tables: int32 [N, B]; an entry below 0 is read as block 0.
        slot, kv_head, token: int32; token is the request's first row.
        group: int32, query heads of a kv head.
        first_pair, pairs, start, keys: int32.
        warp, warps: int32, place of the calling warp among those that share the keys.
    """
    block_size, head_dim = k_cache.shape[1], k_cache.shape[3]
    for key in range(warp, keys, warps):
        block = max(block_tables[slot, (start + key) // block_size], 0)
        offset = (start + key) % block_size
        for p in range(pairs):
            row = token + (first_pair + p) // group
            column = (kv_head * group + (first_pair + p) % group) * head_dim
            score = f32(0.0)
            for d in range(lane(), head_dim, warp_size()):
                score += widen(query[row, column + d]) * widen(k_cache[block, offset, kv_head, d])
            score = warp_sum(score)
            if lane() == 0:
                scores[p * width + key] = score


@primitive(_no_form)
def attend_values(totals, unit, shares, width, v_cache, block_tables, slot, kv_head, pairs, start, begin, end, keys, dim):
    """totals[unit, p, d] = sum over keys begin..end of the chunk of shares[p * width + key] * v[start + key, dim + d], d < SLAB.

    Args:
        totals: float32 shared, flat: [units, PAIRS, SLAB].
        unit: int32.
        shares: float32 shared [PAIRS * width].
        v_cache: [blocks, block_size, nkv, hd], any storage type.
        begin, end: int32; keys from `keys` on count as nothing.
        dim: int32, first dim of the slab.
        others: as in `attend_scores`.
    """
    block_size, head_dim = v_cache.shape[1], v_cache.shape[3]
    for p in range(pairs):
        for d in range(lane(), min(SLAB, head_dim - dim), warp_size()):
            totals[(unit * PAIRS + p) * SLAB + d] = f32(0.0)
    for key in range(begin, min(end, keys)):
        block = max(block_tables[slot, (start + key) // block_size], 0)
        offset = (start + key) % block_size
        for p in range(pairs):
            share = shares[p * width + key]
            if share != f32(0.0):  # a key that the row does not see may hold NaN: a draft that is about to be rejected
                for d in range(lane(), min(SLAB, head_dim - dim), warp_size()):
                    totals[(unit * PAIRS + p) * SLAB + d] += share * widen(v_cache[block, offset, kv_head, dim + d])


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


@device_function
def attend_requests(
    out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, scores,
    sums, largest, normalizer, running, running_largest, running_normalizer,
):  # fmt: skip
    """What the kernels of kernels/attend.py do where a GPU has no form of its own.

    Args:
        scores, sums, largest, normalizer, running, running_largest, running_normalizer: float32 shared [SCORES], [SUMS], [PAIRS],
            [PAIRS], [RUNNING], [PAIRS], [PAIRS].
        others: as in the kernels.
    """
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
                    attend_scores(
                        scores, i32(CHUNK_KEYS), query, k_cache, block_tables, slot, kv_head, token, group, first_pair, pairs,
                        start, keys, warp, warps,
                    )  # fmt: skip
                    cuda.syncthreads()
                    chunk_softmax(
                        scores, largest, normalizer, positions, token, group, first_pair, pairs, start, keys, scale, warp, warps
                    )
                    cuda.syncthreads()
                    unit = i32(warp)
                    while unit < slabs * parts:
                        part = divide(unit, slabs)
                        attend_values(
                            sums, unit, scores, i32(CHUNK_KEYS), v_cache, block_tables, slot, kv_head, pairs, start,
                            part * share_keys, (part + i32(1)) * share_keys, keys, (unit - part * slabs) * i32(SLAB),
                        )  # fmt: skip
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
