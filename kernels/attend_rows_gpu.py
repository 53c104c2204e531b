"""The GPU's form of kernels/attend.py over 16-bit queries, keys and values of 64 or 128 dims.

A block takes 64 pairs of a request and a kv head, sixteen a warp, over tiles of 64 keys that all of them share: keys and values of
the next tile are under way while this one is computed. The blocks of a cluster take turns at the tiles and add up in shared memory
(kernels/attend_split_gpu.py): a prompt in chunks has few blocks, and long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_slab_gpu import (
    TILE_KEYS,
    largest_of,
    load_slab,
    mask_scores,
    no_sums,
    scale_sums,
    shares_of,
    slabs_with,
    total_of,
)
from kernels.attend_split_gpu import WARPS, fold_blocks, keep_stats, keep_sums, store_slabs_with
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, i64, u32
from kernels.lang_element import element, exp2
from kernels.lang_matrix import larger
from kernels.lang_mma import (
    commit_copies,
    copy16,
    mma_bfloat16,
    mma_float16,
    pair_bfloat16,
    pair_float16,
    ring_address,
    wait_copies,
)
from kernels.lang_overlap import cluster_barrier, cluster_rank, cluster_size
from kernels.lang_warp import lane, quad_max, quad_sum, warp_broadcast, warp_take

_KEYS = TILE_KEYS
_PAIRS = 16 * WARPS
_VALUES = 2  # tiles of keys before those of values: two of each in the ring
_LOG2_E = 1.4426950408889634


@device_function
def finite_or_zero(top):
    """What scores are shifted by: no key was seen yet where the maximum is -inf."""
    return top if top > NEG_INF else f32(0.0)


def _copies_of(head_dim: int) -> Any:
    """(entry_of, copy_tile): which rows of a tile a lane looks up, and the copy of a tile by all threads of the block."""
    places = head_dim // 8  # 16 bytes of a row
    at_once = 32 // places  # rows of a warp
    stride = at_once * WARPS
    passes = _KEYS // stride
    mine = _KEYS // WARPS
    row_bytes = 2 * head_dim

    @device_function
    def entry_of(block_tables, table_row, tile, keys, block_size, warp):
        """Entry of the cache of one of the keys that the warp copies, -1 behind the last key."""
        j = i32(lane() & i32(mine - 1))
        key = i32(tile * i32(_KEYS) + (j // i32(at_once)) * i32(stride) + warp * i32(at_once) + (j & i32(at_once - 1)))
        entry = i32(-1)
        if key < keys:
            page = i32(u32(key) // u32(block_size))
            block = max(element(block_tables, i64(i32(table_row + page))), i32(0))
            entry = i32(block * block_size + key - page * block_size)
        return entry

    @device_function
    def copy_tile(base, cache, entry, width, column, warp):
        """Begin to copy a tile. width: elements between entries; column: of the kv head in them. Zeros behind the last key."""
        row, place = i32(warp * i32(at_once) + lane() // i32(places)), i32(lane() & i32(places - 1))
        to = u32(base + u32(row * i32(row_bytes) + ((place ^ (row & i32(7))) << i32(4))))
        at = i64(i32(column + place * i32(8)))
        for i in range(passes):
            found = warp_take(entry, i32(i32(i * at_once) + lane() // i32(places)))
            size = u32(16) if found >= i32(0) else u32(0)
            if warp < i32(WARPS):
                copy16(u32(to + u32(i * stride * row_bytes)), cache, i64(max(found, i32(0))) * i64(width) + at, size)
        commit_copies()

    return entry_of, copy_tile


def _tiles_with(mma: Any, pair: Any, head_dim: int) -> Any:
    """A block's pairs over all their keys, for one type and head size."""
    entry_of, copy_tile = _copies_of(head_dim)
    add_scores, left_operands, add_values = slabs_with(mma, pair, head_dim)
    store_slabs, fold = store_slabs_with(pair), fold_blocks(pair, head_dim)
    row_bytes, wide = 2 * head_dim, head_dim > 64
    tile_bytes = _KEYS * row_bytes

    @device_function
    def attend_pairs(
        out, query, k_cache, v_cache, block_tables, positions, table_row, kv_head, token, group, first_pair, pairs, scale,
        ring, stat_base, rank, ranks,
    ):  # fmt: skip
        """first_pair, pairs: of the request and kv head; scale: of scores, times log2(e); ring: shared, 4 * tile_bytes."""
        warp = i32(cuda.threadIdx.x >> 5)
        g, quad = i32(lane() >> i32(2)), i32(lane() & i32(3))
        block_size, width = i32(k_cache.shape[1]), i32(i32(k_cache.shape[2]) * i32(head_dim))
        column = i32(kv_head * i32(head_dim))
        last = i32(pairs - i32(1))
        keys = i32(element(positions, i64(i32(token + i32(u32(first_pair + last) // u32(group))))) + i32(1))
        entry = entry_of(block_tables, table_row, rank, keys, block_size, warp)
        copy_tile(ring, k_cache, entry, width, column, warp)
        copy_tile(u32(ring + u32(_VALUES * tile_bytes)), v_cache, entry, width, column, warp)
        entry = entry_of(block_tables, table_row, i32(rank + ranks), keys, block_size, warp)
        near, far = i32(warp * i32(16) + g), i32(warp * i32(16) + g + i32(8))
        near_pair, far_pair = i32(first_pair + min(near, last)), i32(first_pair + min(far, last))
        near_row, far_row = i32(token + i32(u32(near_pair) // u32(group))), i32(token + i32(u32(far_pair) // u32(group)))
        # The pair's row and head: element (row * heads + kv_head * group + pair % group) * head_dim of queries and of the output.
        near_at = i64(near_row) * i64(i32(query.shape[1])) + i64(
            i32((kv_head * group + near_pair - (near_row - token) * group) * i32(head_dim) + quad * i32(2))
        )
        far_at = i64(far_row) * i64(i32(query.shape[1])) + i64(
            i32((kv_head * group + far_pair - (far_row - token) * group) * i32(head_dim) + quad * i32(2))
        )
        near_seen = i32(element(positions, i64(near_row)) + i32(1))
        far_seen = i32(element(positions, i64(far_row)) + i32(1))
        q, r = load_slab(query, near_at, far_at), load_slab(query, near_at, far_at)
        if wide:
            r = load_slab(query, near_at + i64(64), far_at + i64(64))
        least, most = warp_broadcast(near_seen, i32(0)), warp_broadcast(far_seen, i32(31))
        if i32(warp * i32(16)) > last:
            most = i32(0)  # nobody's: the warp copies, and waits
        octet = i32(lane() & i32(7))
        key_row = u32(ring + u32((octet + ((lane() >> i32(4)) << i32(3))) * i32(row_bytes)))
        key_turn = u32((octet ^ ((lane() >> i32(3)) & i32(1))) << i32(4))
        value_row = u32(ring + u32(_VALUES * tile_bytes) + u32((lane() & i32(15)) * i32(row_bytes)))
        value_turn = u32((octet ^ (lane() >> i32(4))) << i32(4))
        near_top, far_top, near_total, far_total = NEG_INF, NEG_INF, f32(0.0), f32(0.0)
        o, u = no_sums(), no_sums()
        tile, stage = i32(rank), u32(0)  # stage: where in the ring the keys of the tile begin
        while i32(tile * i32(_KEYS)) < keys:
            first, ahead = i32(tile * i32(_KEYS)), i32(tile + ranks)
            wait_copies()
            cuda.syncthreads()
            other = u32(u32(tile_bytes) - stage)
            if i32(ahead * i32(_KEYS)) < keys:
                copy_tile(u32(ring + other), k_cache, entry, width, column, warp)
                copy_tile(u32(ring + other + u32(_VALUES * tile_bytes)), v_cache, entry, width, column, warp)
                entry = entry_of(block_tables, table_row, i32(ahead + ranks), keys, block_size, warp)
            if first < most:
                s = add_scores(no_sums(), q, u32(key_row + stage), key_turn)
                if wide:
                    s = add_scores(s, r, u32(key_row + stage + u32(128)), key_turn)
                if i32(first + i32(_KEYS)) > least:
                    s = mask_scores(s, i32(first + quad * i32(2)), near_seen, far_seen)
                near_high = larger(near_top, quad_max(largest_of(s, 0, 1)))
                far_high = larger(far_top, quad_max(largest_of(s, 2, 3)))
                near_shift, far_shift = finite_or_zero(near_high) * scale, finite_or_zero(far_high) * scale
                near_keep, far_keep = exp2(near_top * scale - near_shift), exp2(far_top * scale - far_shift)
                near_top, far_top = near_high, far_high
                s = shares_of(s, scale, near_shift, far_shift)
                near_total = near_total * near_keep + total_of(s, 0, 1)
                far_total = far_total * far_keep + total_of(s, 2, 3)
                p = left_operands(s)
                o = add_values(scale_sums(o, near_keep, far_keep), p, u32(value_row + stage), value_turn)
                if wide:
                    u = add_values(scale_sums(u, near_keep, far_keep), p, u32(value_row + stage + u32(128)), value_turn)
            tile, stage = ahead, other
        near_total, far_total = quad_sum(near_total), quad_sum(far_total)
        if ranks == i32(1):
            store_slabs(out, near_at, far_at, near <= last, far <= last, f32(1.0) / near_total, f32(1.0) / far_total, o, u, wide)
            cuda.syncthreads()
        else:
            wait_copies()
            cuda.syncthreads()  # the sums take the place of keys and values, of all warps
            if warp < i32(WARPS):
                keep_stats(stat_base, warp, near_top * scale, far_top * scale, near_total, far_total)
                keep_sums(ring, warp, head_dim, o, u, wide)
            cuda.syncthreads()
            cluster_barrier()
            active = min(i32(i32(keys + i32(_KEYS - 1)) >> i32(6)), ranks)
            fold(out, near_at, far_at, near <= last, far <= last, ring, stat_base, rank, ranks, active)
            cuda.syncthreads()
            cluster_barrier()

    return attend_pairs


def _rows(mma: Any, pair: Any, head_dim: int) -> Callable[..., Any]:
    attend_pairs = _tiles_with(mma, pair, head_dim)

    def rows_form(
        out, query, k_cache, v_cache, block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests, ring,
        stats,
    ):  # fmt: skip
        """Tiles of pairs are counted over all requests; who comes last in a request has most keys, and is taken first."""
        rank, ranks = cluster_rank(), cluster_size()
        kv_heads, live = i32(k_cache.shape[2]), num_requests[0]
        group = i32(u32(num_heads) // u32(kv_heads))
        ring_base, stat_base = ring_address(ring), ring_address(stats)
        clusters = i32(u32(cuda.gridDim.x) // u32(ranks))
        scale = scale * f32(_LOG2_E)
        index, passed, request = i32(i32(u32(cuda.blockIdx.x) // u32(ranks)) + i32(cuda.blockIdx.z) * clusters), i32(0), i32(0)
        while request < live:
            token = element(query_start_loc, i64(request))
            pair_count = i32((element(query_start_loc, i64(i32(request + i32(1)))) - token) * group)
            tiles = i32(u32(pair_count + i32(_PAIRS - 1)) // u32(_PAIRS))
            if i32(index - passed) < tiles:
                first_pair = i32((tiles - i32(1) - (index - passed)) * i32(_PAIRS))
                pairs = min(i32(pair_count - first_pair), i32(_PAIRS))
                table_row = i32(element(idx_mapping, i64(request)) * i32(block_tables.shape[1]))
                kv_head = i32(cuda.blockIdx.y)
                while kv_head < kv_heads:
                    attend_pairs(
                        out, query, k_cache, v_cache, block_tables, positions, table_row, kv_head, token, group, first_pair, pairs,
                        scale, ring_base, stat_base, rank, ranks,
                    )  # fmt: skip
                    kv_head = i32(kv_head + i32(cuda.gridDim.y))
                index = i32(index + clusters * i32(cuda.gridDim.z))
            else:
                passed = i32(passed + tiles)
                request = i32(request + i32(1))

    return rows_form


def yes(query, k_cache):
    return True


def _of_types(head_dim: int) -> dict[str, Callable[..., Any]]:
    """By the type of queries and cache; anything else runs in the common form."""
    return {"uint16": _rows(mma_bfloat16, pair_bfloat16, head_dim), "float16": _rows(mma_float16, pair_float16, head_dim)}


ROWS, WIDE_ROWS = _of_types(64), _of_types(128)
