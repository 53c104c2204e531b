"""The GPU's form of kernels/attend_step.py over 16-bit keys and values of 64 or 128 dims.

A step is as short as its instructions are few: offsets are of elements of contiguous arrays, in 32 bits where they fit, divisions
by small numbers are products with their inverse, loads of a kind are under way together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_fold_gpu import PART_BYTES, STAT_BYTES, fold
from kernels.attend_heads_gpu import VALUES
from kernels.attend_keys_gpu import tiles_with
from kernels.attend_pages_gpu import TILE_KEYS, fetch_tile_keys, fetch_tile_values, inverse_of, quotient, tile_entry
from kernels.lang import cuda, i32, i64, u32
from kernels.lang_element import early_int
from kernels.lang_mma import mma_bfloat16, mma_float16, pair_bfloat16, pair_float16, ring_address
from kernels.lang_overlap import cluster_barrier, cluster_rank, cluster_size, let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane

_KEYS, _VALUES = TILE_KEYS, VALUES
_PAIRS = 16
_WARPS = 4


def _step(mma: Any, pair: Any) -> Callable[..., Any]:
    attend_tiles = tiles_with(mma, pair)

    def step_form(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, eps, scale, stored, num_requests, ring, queries, stats,
    ):  # fmt: skip
        head_dim, kv_heads, block_size = i32(k_cache.shape[3]), i32(k_cache.shape[2]), i32(k_cache.shape[1])
        group = i32(u32(num_heads) // u32(kv_heads))
        share, page_share = inverse_of(group), inverse_of(block_size)
        warp, warps = i32(cuda.threadIdx.x >> 5), i32(min(i32(cuda.blockDim.x >> 5), _WARPS))
        rank, ranks = cluster_rank(), cluster_size()
        place, places = i32(rank * warps + warp), i32(ranks * warps)
        if warp >= warps:
            place = i32(1 << 20)  # beyond every key
        base, stat_base, query_base = u32(ring_address(ring)), u32(ring_address(stats)), u32(ring_address(queries))
        own, stat = u32(base + u32(min(warp, warps) * i32(PART_BYTES))), u32(stat_base + u32(min(warp, warps) * i32(STAT_BYTES)))
        mine = u32(own + u32(lane() * i32(16)))
        request, last_request = i32(cuda.blockIdx.z), i32(idx_mapping.shape[0] - 1)
        live = early_int(num_requests, i64(0))
        at = min(request, last_request)
        token, behind = early_int(query_start_loc, i64(at)), early_int(query_start_loc, i64(i32(at + i32(1))))
        slot = early_int(idx_mapping, i64(at))
        while request < live:
            pair_count = i32((behind - token) * group)
            table_row = i32(slot * i32(block_tables.shape[1]))
            kv_head = i32(cuda.blockIdx.y)
            while kv_head < kv_heads:
                first_pair = i32(u32(cuda.blockIdx.x) // u32(ranks)) * i32(_PAIRS)
                while first_pair < pair_count:
                    pairs = min(i32(pair_count - first_pair), i32(_PAIRS))
                    before = early_int(positions, i64(token))
                    keys = i32(early_int(positions, i64(i32(token + quotient(i32(first_pair + pairs - i32(1)), share)))) + i32(1))
                    entry, ahead_entry = i32(0), i32(0)
                    if i32(place * i32(_KEYS)) < i32(i32(block_tables.shape[1]) * block_size):
                        entry = tile_entry(block_tables, table_row, place, block_size, page_share)
                        ahead_entry = tile_entry(block_tables, table_row, i32(place + places), block_size, page_share)
                    limit = before
                    if stored != i32(0):
                        limit = keys  # no early start behind who stored them: k_cache is read early
                    if i32(place * i32(_KEYS)) < keys:
                        fetch_tile_keys(mine, k_cache, block_tables, table_row, kv_head, place, entry, limit, page_share)
                        values = u32(mine + u32(_VALUES))
                        fetch_tile_values(values, v_cache, block_tables, table_row, kv_head, place, entry, limit, page_share)
                    wait_for_launches()
                    let_next_launch_start()
                    if i32(rank * warps * i32(_KEYS)) < keys:
                        attend_tiles(
                            own, stat, query_base, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping,
                            table_row, kv_head, num_heads, token, group, share, page_share, first_pair, pairs, before, limit, keys,
                            eps, scale, i32(first_pair + pairs) == pair_count, warp, warps, i32(rank * warps), place, places,
                            ahead_entry, i32(0), i32(0),
                        )  # fmt: skip
                    cuda.syncthreads()
                    cluster_barrier()
                    active = min(i32((keys + i32(_KEYS - 1)) >> i32(4)), places)
                    if warp < warps:
                        fold(
                            out, base, stat_base, token, group, share, kv_head, head_dim, first_pair, pairs, active, place, places,
                            warps,
                        )  # fmt: skip
                    cuda.syncthreads()
                    cluster_barrier()
                    first_pair = i32(first_pair + i32(u32(cuda.gridDim.x) // u32(ranks)) * i32(_PAIRS))
                kv_head = i32(kv_head + i32(cuda.gridDim.y))
            request = i32(request + i32(cuda.gridDim.z))
            at = min(request, last_request)
            token, behind = early_int(query_start_loc, i64(at)), early_int(query_start_loc, i64(i32(at + i32(1))))
            slot = early_int(idx_mapping, i64(at))
        wait_for_launches()

    return step_form


def yes(k_cache):
    return True


STEP = {"uint16": _step(mma_bfloat16, pair_bfloat16), "float16": _step(mma_float16, pair_float16)}
"""By the type of the cache; anything else runs in the common form."""
