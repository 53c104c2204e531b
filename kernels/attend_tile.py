"""The two products of attention over a chunk of paged keys: scores = q . k, and the sum of values by their shares.

A pair is one query row of a request with one of the query heads that share a kv head: up to sixteen pairs go over the same keys.
"""

from __future__ import annotations

from typing import Any

from kernels.lang import SIMULATED, f32
from kernels.lang_storage import widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum

if not SIMULATED:
    import kernels.attend_gpu as attend_gpu

PAIRS = 16
"""Pairs that go over a chunk together."""

SLAB = 64
"""Dims of a head that one warp sums up."""

RING = 4096 + 4
"""Floats of shared memory that 64 keys, or values, of 128 dims take in 16 bits; 4 to begin at 16 bytes."""


def _gpu_fetch_keys(ring: Any, k_cache: Any, *rest: Any) -> Any:
    return attend_gpu.fetch_keys_form if str(k_cache.dtype) in attend_gpu.SCORES else None


def _gpu_fetch_values(ring: Any, v_cache: Any, *rest: Any) -> Any:
    return attend_gpu.fetch_values_form if str(v_cache.dtype) in attend_gpu.VALUES else None


@primitive(_gpu_fetch_keys)
def fetch_keys(ring, k_cache, block_tables, slot, kv_head, start, keys, warp, warps):
    """Let the keys of a chunk be under way to `ring`, each lane's own for `attend_scores`. Only a GPU has anything to do."""


@primitive(_gpu_fetch_values)
def fetch_values(ring, v_cache, block_tables, slot, kv_head, start, share_keys, keys, slabs, parts, warp, warps):
    """The same for the values, for `attend_values` of the units that the calling warp will take. Behind `fetch_keys`."""


def _gpu_scores(scores: Any, width: Any, ring: Any, query: Any, k_cache: Any, *rest: Any) -> Any:
    same = str(query.dtype) == str(k_cache.dtype)
    return attend_gpu.SCORES.get(str(k_cache.dtype)) if same else None


def _gpu_values(totals: Any, unit: Any, shares: Any, width: Any, ring: Any, v_cache: Any, *rest: Any) -> Any:
    return attend_gpu.VALUES.get(str(v_cache.dtype))


@primitive(_gpu_scores)
def attend_scores(
    scores, width, ring, query, k_cache, block_tables, slot, kv_head, token, group, first_pair, pairs, start, keys, warp, warps
):
    """scores[p * width + j] = q of pair first_pair + p . k of key start + j, for p < pairs, j < keys. Called by `warps` warps.

    Args:
        scores: float32 shared [PAIRS * width]; on a GPU with 16-bit types rows of absent pairs are written too, and so are keys up
            to the next multiple of 8, with what the last pair and key yield.
        width: int32, at least `keys` rounded up to 16.
        ring: float32 shared [RING]: keys under way (`fetch_keys`).
        query: [T, nh * hd], rotated. A GPU's 16-bit form needs hd = 64 or 128, and chunks of at most 64 keys.
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


@primitive(_gpu_values)
def attend_values(
    totals, unit, shares, width, ring, v_cache, block_tables, slot, kv_head, pairs, start, begin, end, keys, dim
):
    """totals[unit, p, d] = sum over keys begin..end of the chunk of shares[p * width + key] * v[start + key, dim + d], d < SLAB.

    Args:
        totals: float32 shared, flat: [units, PAIRS, SLAB].
        unit: int32.
        shares: float32 shared [PAIRS * width]; 0 from `keys` to the next multiple of 16.
        ring: float32 shared [RING]: values under way (`fetch_values`).
        v_cache: [blocks, block_size, nkv, hd], any storage type.
        begin, end: int32, multiples of 16, alike for all units but for their place; keys from `keys` on count as nothing.
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
            for d in range(lane(), min(SLAB, head_dim - dim), warp_size()):
                totals[(unit * PAIRS + p) * SLAB + d] += share * widen(v_cache[block, offset, kv_head, dim + d])
