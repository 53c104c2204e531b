"""The GPU's form of kernels/block_attend.py over 16-bit keys and values of 64 or 128 dims: a decode step's attention
(kernels/attend_step_gpu.py) whose rows see each other both ways, in a window where there is one, and whose keys are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_fold_gpu import PART_BYTES, STAT_BYTES, fold
from kernels.attend_heads_gpu import VALUES
from kernels.attend_keys_gpu import tiles_with, visible_within
from kernels.attend_pages_gpu import TILE_KEYS, fetch_tile_keys, fetch_tile_values, inverse_of, tile_entry
from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_element import early_int
from kernels.lang_mma import mma_bfloat16, mma_float16, pair_bfloat16, pair_float16, ring_address
from kernels.lang_overlap import cluster_barrier, cluster_rank, cluster_size, let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane

_KEYS, _VALUES = TILE_KEYS, VALUES
_PAIRS = 16
_WARPS = 4


@device_function
def block_span(before, row, keys, window, causal):
    """Keys [begin, end) that a row of a block sees, as kernels/block_attend.py has it."""
    position, begin, end = min(i32(before + row), i32(keys - i32(1))), i32(0), keys
    if causal > i32(0):
        end = i32(position + i32(1))
    if window > i32(0):
        begin, end = max(i32(position - window + i32(1)), i32(0)), min(end, i32(position + window))
    return begin, end


def _block(mma: Any, pair: Any) -> Callable[..., Any]:
    attend_tiles = tiles_with(mma, pair, block_span, visible_within)

    def block_form(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps,
        window, causal, scale, num_requests, ring, queries, stats,
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
        rows = i32(u32(out.shape[0]) // u32(context_lens.shape[0]))
        pair_count = i32(rows * group)
        live = min(early_int(num_requests, i64(0)), i32(context_lens.shape[0]))
        request = i32(cuda.blockIdx.z)
        while request < live:
            slot = max(early_int(idx_mapping, i64(request)), i32(0))
            before = early_int(context_lens, i64(request))
            keys = max(i32(before + early_int(block_lens, i64(request))), i32(1))
            token, table_row, skipped = i32(request * rows), i32(slot * i32(block_tables.shape[1])), i32(0)
            if window > i32(0):
                skipped = i32(max(i32(min(before, i32(keys - i32(1))) - window + i32(1)), i32(0)) >> i32(4))
            first_tile = i32(place + skipped)
            kv_head = i32(cuda.blockIdx.y)
            while kv_head < kv_heads:
                first_pair = i32(u32(cuda.blockIdx.x) // u32(ranks)) * i32(_PAIRS)
                while first_pair < pair_count:
                    pairs, entry, ahead_entry = min(i32(pair_count - first_pair), i32(_PAIRS)), i32(0), i32(0)
                    if i32(first_tile * i32(_KEYS)) < keys:
                        entry = tile_entry(block_tables, table_row, first_tile, block_size, page_share)
                        ahead_entry = tile_entry(block_tables, table_row, i32(first_tile + places), block_size, page_share)
                        fetch_tile_keys(mine, k_cache, block_tables, table_row, kv_head, first_tile, entry, before, page_share)
                        values = u32(mine + u32(_VALUES))
                        fetch_tile_values(values, v_cache, block_tables, table_row, kv_head, first_tile, entry, before, page_share)
                    wait_for_launches()
                    let_next_launch_start()
                    if i32((rank * warps + skipped) * i32(_KEYS)) < keys:
                        attend_tiles(
                            own, stat, query_base, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, None, table_row,
                            kv_head, num_heads, token, group, share, page_share, first_pair, pairs, before, before, keys, eps,
                            scale, False, warp, warps, i32(rank * warps + skipped), first_tile, places, ahead_entry, window, causal,
                        )  # fmt: skip
                    cuda.syncthreads()
                    cluster_barrier()
                    active = min(i32(i32(i32(keys + i32(_KEYS - 1)) >> i32(4)) - skipped), places)
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
        wait_for_launches()

    return block_form


def yes(k_cache):
    return True


BLOCK = {"uint16": _block(mma_bfloat16, pair_bfloat16), "float16": _block(mma_float16, pair_float16)}
"""By the type of the cache; anything else runs in the common form."""
