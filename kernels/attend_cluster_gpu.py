"""Sixteen pairs of a query row and a head over all their keys, by a cluster of blocks: what the attention of a step
(kernels/attend_step_gpu.py) and of a draft block (kernels/block_attend_gpu.py) have in common.

Tile t of keys is taken by warp (t - skipped) mod places of the cluster, and a warp adds up its tiles from the last to the first: so
keys of the step itself, which are not in the cache, come first and are shared by the warps of a block. Which rows a request
brings has no say in the order of a sum: a tile that a row does not see adds zeros.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_fold_gpu import STAT_BYTES, fold_with
from kernels.attend_keys_gpu import fresh_keys, tiles_with
from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import TILE_KEYS, inverse_of, quotient, tile_entry
from kernels.lang import cuda, device_function, i32, u32
from kernels.lang_mma import ring_address
from kernels.lang_overlap import cluster_barrier, cluster_rank, cluster_size, let_next_launch_start, wait_for_launches

_KEYS = TILE_KEYS
_WARPS = 8

PAIRS = 16
"""Pairs that go over the keys together."""


def pairs_with(mma: Any, pair: Any, layout: Layout, span: Any, see: Any) -> Any:
    """`attend_pairs` for the arguments of `attend_keys_gpu.tiles_with`."""
    attend_tiles, fold = tiles_with(mma, pair, layout, span, see), fold_with(layout)
    fetch_keys, fetch_values, tile_bytes = layout.fetch_keys, layout.fetch_values, layout.tile_bytes
    part_bytes = 2 * tile_bytes

    @device_function
    def attend_pairs(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping, table_row, kv_head, num_heads, token, group,
        share, page_share, first_pair, pairs, before, limit, keys, skipped, eps, scale, stores, window, causal, ring, queries,
        stats,
    ):  # fmt: skip
        """out = attention of pairs first_pair .. first_pair + pairs of the request whose rows begin at `token`. By a whole cluster.

        before: int32, position of the request's first row. limit: int32, keys that the cache holds; those behind it, up to `keys`,
        come from qkv, and with slot_mapping and `stores` they go to the cache. skipped: int32, tiles in front of what any row
        sees. others: as in the two forms.
        """
        head_dim, block_size = i32(k_cache.shape[3]), i32(k_cache.shape[1])
        warp, warps = i32(cuda.threadIdx.x >> 5), i32(min(i32(cuda.blockDim.x >> 5), _WARPS))
        block_place, places = i32(cluster_rank() * warps), i32(cluster_size() * warps)
        place = i32(block_place + warp)
        if warp >= warps:
            place = i32(1 << 20)  # beyond every key
        base, stat_base, query_base = u32(ring_address(ring)), u32(ring_address(stats)), u32(ring_address(queries))
        own, stat = u32(base + u32(min(warp, warps) * i32(part_bytes))), u32(stat_base + u32(min(warp, warps) * i32(STAT_BYTES)))
        entry, ahead_entry, lowest = i32(0), i32(0), i32(place + skipped)
        if i32(lowest * i32(_KEYS)) < i32(i32(block_tables.shape[1]) * block_size):  # under way before `keys` is there
            entry = tile_entry(block_tables, table_row, lowest, block_size, page_share)
        tiles = i32((keys + i32(_KEYS - 1)) >> i32(4))
        start = i32(lowest - places)
        if lowest < tiles:
            start = i32(lowest + quotient(i32(tiles - i32(1) - lowest), inverse_of(places)) * places)
        if start > lowest:
            entry = tile_entry(block_tables, table_row, start, block_size, page_share)
            ahead_entry = tile_entry(block_tables, table_row, i32(start - places), block_size, page_share)
        if start >= lowest:
            fetch_keys(own, k_cache, block_tables, table_row, kv_head, start, entry, limit, keys, page_share)
            values = u32(own + u32(tile_bytes))
            fetch_values(values, v_cache, block_tables, table_row, kv_head, start, entry, limit, keys, page_share)
        fresh = fresh_keys(keys, limit, places, skipped, block_place, warps)
        wait_for_launches()
        let_next_launch_start()
        if i32(block_place + skipped) < tiles:
            attend_tiles(
                own, stat, query_base, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping, table_row, kv_head,
                num_heads, token, group, share, page_share, first_pair, pairs, before, limit, keys, eps, scale, stores, warp, warps,
                block_place, places, lowest, start, fresh, ahead_entry, window, causal,
            )  # fmt: skip
        cuda.syncthreads()
        cluster_barrier()
        if warp < warps:
            active = min(i32(tiles - skipped), places)
            fold(out, base, stat_base, token, group, share, kv_head, head_dim, first_pair, pairs, active, place, places, warps)
        cuda.syncthreads()
        cluster_barrier()

    return attend_pairs
