"""A warp's tiles of keys and values against sixteen pairs, on tensor cores, for a step's attention (kernels/attend_step_gpu.py).

Scores, shares and sums stay in the registers of the operands (FlashAttention 2, Dao, 2023); the softmax runs along the tiles.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_heads_gpu import new_keys_with, queries_with
from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import TILE_KEYS, inverse_of, quotient, tile_entry
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, u32
from kernels.lang_element import exp2, write4
from kernels.lang_mma import commit_copies, wait_copies, wait_first_copies
from kernels.lang_warp import lane, quad_max, quad_sum, warp_barrier

_KEYS = TILE_KEYS
_LOG2_E = 1.4426950408889634
_ALONE = 2
"""Keys of the step that a warp does at a time: more in a block are shared by its warps, and the queries wait for them."""


@device_function
def visible(score, key, begin, seen, scale):
    if key < seen:
        return score * scale
    return NEG_INF


@device_function
def visible_within(score, key, begin, seen, scale):
    if key >= begin and key < seen:
        return score * scale
    return NEG_INF


@device_function
def all_before(before, row, keys, window, causal):
    """Keys [begin, end) that a row sees: all up to its own position."""
    return i32(0), min(i32(before + row + i32(1)), keys)


@device_function
def finite_or_zero(top):
    """What scores are shifted by: no key was seen yet where the maximum is -inf."""
    return top if top > NEG_INF else f32(0.0)


@device_function
def scaled(sums, near, far):
    return sums[0] * near, sums[1] * near, sums[2] * far, sums[3] * far


@device_function
def nothing():
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@device_function
def first_fresh(keys, limit, places, skipped):
    """First tile with keys of this step, from `limit` on, among those that the warps of a cluster take first."""
    return max(max(i32(limit >> i32(4)), i32(i32((keys + i32(_KEYS - 1)) >> i32(4)) - places)), skipped)


@device_function
def place_of(tile, places, skipped):
    """Which warp of the cluster takes a tile."""
    at = i32(tile - skipped)
    return i32(at - quotient(at, inverse_of(places)) * places)


@device_function
def next_place(place, places):
    """Of the tile behind that of `place`."""
    return i32(place + i32(1)) if i32(place + i32(1)) < places else i32(0)


@device_function
def fresh_keys(keys, limit, places, skipped, block_place, warps):
    """(keys of this step in the tiles that the warps of a block take first, the last warp that has some, the first such tile of the
    cluster, its place)."""
    count, owner, first = i32(0), i32(0), first_fresh(keys, limit, places, skipped)
    first_place = place_of(first, places, skipped)
    tile, place = i32(first), i32(first_place)
    while i32(tile * i32(_KEYS)) < keys:
        part = i32(place - block_place)
        found = i32(min(i32((tile + i32(1)) * i32(_KEYS)), keys) - max(i32(tile * i32(_KEYS)), limit))
        if part >= i32(0) and part < warps and found > i32(0):
            count, owner = i32(count + found), part
        tile, place = i32(tile + i32(1)), next_place(place, places)
    return count, owner, first, first_place


def tiles_with(mma: Any, pair: Any, layout: Layout, span: Any = all_before, see: Any = visible) -> Any:
    """`attend_tiles` for the tensor cores' product `mma` and the rounding of two floats into a word `pair`.

    span: which keys a row sees, as `all_before`; see: a score there, as `visible`, or `visible_within` where they begin behind 0.
    """
    scores, weigh, places_of, meet, keep = layout.scores(mma), layout.weigh(mma), layout.places, layout.meet, layout.keep
    guard = layout.guard
    fetch_keys, fetch_values, tile_bytes = layout.fetch_keys, layout.fetch_values, layout.tile_bytes
    tiles = 2 * tile_bytes
    new_keys, queries_of = new_keys_with(pair, layout), queries_with(pair, layout)

    @device_function
    def attend_tiles(
        base, stat, query_base, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping, table_row, kv_head,
        num_heads, token, group, share, page_share, first_pair, pairs, before, limit, keys, eps, scale, stores, warp, warps,
        block_place, places, lowest, start, fresh, ahead_entry, window, causal,
    ):  # fmt: skip
        """A warp's tiles of keys, the last of them first, which is under way: sums to its part of the ring, maximum and total to
        `stat`.

        block_place: int32, place of the block's first warp in its cluster. slot_mapping None: keys and values of the step are not
        stored. lowest, start: int32, the warp's tiles are start, start - places, .. lowest; start < lowest: it has none.
        fresh: of `fresh_keys`. window, causal: for `span`.
        """
        head_dim, width = i32(k_cache.shape[3]), i32(qkv.shape[1])
        block_size = i32(k_cache.shape[1])
        key_column = i32((num_heads + kv_head) * head_dim)
        g, quad, last = i32(lane() >> i32(2)), i32(lane() & i32(3)), i32(pairs - i32(1))
        row = quotient(i32(first_pair + min(g, last)), share)
        far_row = quotient(i32(first_pair + min(i32(g + i32(8)), last)), share)
        near_begin, near_seen = span(before, row, keys, window, causal)
        far_begin, far_seen = span(before, far_row, keys, window, causal)

        query_at, key_at, value_at = places_of(query_base, base, head_dim)
        scale = scale * f32(_LOG2_E)
        near_top, far_top, near_total, far_total = NEG_INF, NEG_INF, f32(0.0), f32(0.0)
        o0, o1, o2, o3, o4, o5, o6, o7 = nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing()
        u0, u1, u2, u3, u4, u5, u6, u7 = nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing()
        tile, waiting, begun = i32(start), True, False
        while waiting or tile >= lowest:
            first, mixed, behind, place = i32(tile * i32(_KEYS)), i32(tile), i32(tile + i32(1)), i32(block_place + warp)
            who, among, helpers = warp, warps, i32(1)
            if waiting:
                mixed, behind, place = fresh[2], i32((keys + i32(_KEYS - 1)) >> i32(4)), fresh[3]
                if fresh[0] > i32(_ALONE):  # the warps of the block share them
                    helpers = warps
                elif fresh[0] == i32(0):
                    behind = mixed
                elif warps > i32(1):
                    # A warp that has keys of this step to do alone leaves the queries to the others.
                    among = i32(warps - i32(1))
                    who = i32(warp - fresh[1] - i32(1))
                    if who < i32(0):
                        who = i32(who + warps)
                    if who >= among:
                        who = pairs
                if warp >= warps:
                    who = pairs
            while mixed < behind:
                part = i32(place - block_place)
                begin, end = max(i32(mixed * i32(_KEYS)), limit), min(i32((mixed + i32(1)) * i32(_KEYS)), keys)
                shared = helpers > i32(1) and part >= i32(0) and part < warps and warp < warps
                if shared:
                    begin = i32(begin + warp)
                if begin < end and (shared or part == warp):
                    if not waiting:
                        guard()
                    to = u32(base - u32(warp * i32(tiles)) + u32(part * i32(tiles)))
                    new_keys(
                        to, k_cache, v_cache, qkv, k_gain, table, slot_mapping, width, token, key_column, before, mixed, begin, end,
                        helpers, kv_head, stores, eps,
                    )  # fmt: skip
                    if not waiting:
                        guard()
                mixed, place = i32(mixed + i32(1)), next_place(place, places)
            if waiting:
                waiting = False
                queries_of(
                    query_base, qkv, q_gain, table, width, token, before, i32(keys - i32(1)), group, share, i32(kv_head * group),
                    first_pair, pairs, head_dim, eps, who, among,
                )  # fmt: skip
                cuda.syncthreads()
            if tile >= lowest:
                wait_first_copies()
                meet()
                s0, s1, s2, s3 = scores(query_at, key_at, head_dim)
                meet()
                ahead = i32(tile - places)
                entry = ahead_entry
                if ahead >= lowest:
                    fetch_keys(base, k_cache, block_tables, table_row, kv_head, ahead, entry, limit, keys, page_share)
                    if i32(ahead - places) >= lowest:
                        ahead_entry = tile_entry(block_tables, table_row, i32(ahead - places), block_size, page_share)
                else:
                    commit_copies()
                k0 = i32(first + quad * i32(2))
                k1, k2, k3 = i32(k0 + i32(1)), i32(k0 + i32(8)), i32(k0 + i32(9))
                a, b = (
                    see(s0[0] + s2[0], k0, near_begin, near_seen, scale),
                    see(s0[1] + s2[1], k1, near_begin, near_seen, scale),
                )
                c, d = (
                    see(s1[0] + s3[0], k2, near_begin, near_seen, scale),
                    see(s1[1] + s3[1], k3, near_begin, near_seen, scale),
                )
                e, f = see(s0[2] + s2[2], k0, far_begin, far_seen, scale), see(s0[3] + s2[3], k1, far_begin, far_seen, scale)
                h, j = see(s1[2] + s3[2], k2, far_begin, far_seen, scale), see(s1[3] + s3[3], k3, far_begin, far_seen, scale)
                near_high = max(near_top, quad_max(max(max(a, b), max(c, d))))
                far_high = max(far_top, quad_max(max(max(e, f), max(h, j))))
                near_shift, far_shift = finite_or_zero(near_high), finite_or_zero(far_high)
                a, b, c, d = exp2(a - near_shift), exp2(b - near_shift), exp2(c - near_shift), exp2(d - near_shift)
                e, f, h, j = exp2(e - far_shift), exp2(f - far_shift), exp2(h - far_shift), exp2(j - far_shift)
                near_keep, far_keep = exp2(near_top - near_shift), exp2(far_top - far_shift)
                near_total, far_total = near_total * near_keep + ((a + b) + (c + d)), far_total * far_keep + ((e + f) + (h + j))
                near_top, far_top = near_high, far_high
                p = (pair(a, b), pair(e, f), pair(c, d), pair(h, j))
                if begun:
                    o0, o1, o2, o3 = (
                        scaled(o0, near_keep, far_keep),
                        scaled(o1, near_keep, far_keep),
                        scaled(o2, near_keep, far_keep),
                        scaled(o3, near_keep, far_keep),
                    )
                    o4, o5, o6, o7 = (
                        scaled(o4, near_keep, far_keep),
                        scaled(o5, near_keep, far_keep),
                        scaled(o6, near_keep, far_keep),
                        scaled(o7, near_keep, far_keep),
                    )
                    if head_dim > i32(64):
                        u0, u1, u2, u3 = (
                            scaled(u0, near_keep, far_keep),
                            scaled(u1, near_keep, far_keep),
                            scaled(u2, near_keep, far_keep),
                            scaled(u3, near_keep, far_keep),
                        )
                        u4, u5, u6, u7 = (
                            scaled(u4, near_keep, far_keep),
                            scaled(u5, near_keep, far_keep),
                            scaled(u6, near_keep, far_keep),
                            scaled(u7, near_keep, far_keep),
                        )
                wait_first_copies()
                meet()
                o0, o1, o2, o3, o4, o5, o6, o7 = weigh((o0, o1, o2, o3, o4, o5, o6, o7), p, value_at, i32(0))
                if head_dim > i32(64):
                    u0, u1, u2, u3, u4, u5, u6, u7 = weigh((u0, u1, u2, u3, u4, u5, u6, u7), p, value_at, i32(1))
                meet()
                begun = True
                if ahead >= lowest:
                    at = u32(base + u32(tile_bytes))
                    fetch_values(at, v_cache, block_tables, table_row, kv_head, ahead, entry, limit, keys, page_share)
                else:
                    commit_copies()
            tile = i32(tile - places)
        if begun:
            near_total, far_total = quad_sum(near_total), quad_sum(far_total)
            if quad == i32(0):
                at = u32(stat + u32(g * i32(4)))
                write4(at, near_top)
                write4(u32(at + u32(32)), far_top)
                write4(u32(at + u32(64)), near_total)
                write4(u32(at + u32(96)), far_total)
            wait_copies()
            warp_barrier()  # the sums take the place of keys and values, of all lanes
            keep(base, head_dim, pairs > i32(8), (o0, o1, o2, o3, o4, o5, o6, o7), (u0, u1, u2, u3, u4, u5, u6, u7))

    return attend_tiles
