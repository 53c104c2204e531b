"""A warp's tiles of keys and values against sixteen pairs, on tensor cores, for a step's attention (kernels/few_step_gpu.py).

Scores, shares and sums stay in the registers of the operands (FlashAttention 2, Dao, 2023); the softmax runs along the tiles.
"""

from __future__ import annotations

from typing import Any

from kernels.few_fold_gpu import keep_slab
from kernels.few_heads_gpu import VALUES, new_keys_with, queries_with
from kernels.few_pages_gpu import TILE_KEYS, fetch_tile_keys, fetch_tile_values, inverse_of, quotient, tile_entry
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, u32
from kernels.lang_element import exp2, write4
from kernels.lang_mma import commit_copies, read16, select_bytes, wait_copies, wait_first_copies
from kernels.lang_warp import lane, quad_max, quad_sum, warp_barrier

_KEYS, _VALUES = TILE_KEYS, VALUES
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
def four_values(at):
    """A lane's 8 dims of four keys."""
    return read16(at), read16(u32(at + u32(512))), read16(u32(at + u32(1024))), read16(u32(at + u32(1536)))


@device_function
def first_fresh(keys, limit, places, skipped):
    """First tile with keys of this step, from `limit` on, among those that the warps of a cluster take first."""
    return max(max(i32(limit >> i32(4)), i32(i32((keys + i32(_KEYS - 1)) >> i32(4)) - places)), skipped)


@device_function
def part_of(tile, places, skipped, block_place):
    """Which warp of the block takes a tile; below 0 or beyond the last: one of another block."""
    at = i32(tile - skipped)
    return i32(at - quotient(at, inverse_of(places)) * places - block_place)


@device_function
def fresh_keys(keys, limit, places, skipped, block_place, warps):
    """(keys of this step in the tiles that the warps of a block take first, the last warp that has some)."""
    count, owner, tile = i32(0), i32(0), first_fresh(keys, limit, places, skipped)
    while i32(tile * i32(_KEYS)) < keys:
        part = part_of(tile, places, skipped, block_place)
        if part >= i32(0) and part < warps:
            found = i32(min(i32((tile + i32(1)) * i32(_KEYS)), keys) - max(i32(tile * i32(_KEYS)), limit))
            if found > i32(0):
                count, owner = i32(count + found), part
        tile = i32(tile + i32(1))
    return count, owner


def _products_with(mma: Any, pair: Any) -> Any:
    @device_function
    def dots(s0, s1, s2, s3, near, far, key, other):
        """64 more dims of the scores of keys 0 .. 7 and 8 .. 15, each in two sums."""
        n, f, w, x = read16(near), read16(far), read16(key), read16(other)
        m, h = read16(u32(near + u32(512))), read16(u32(far + u32(512)))
        y, z = read16(u32(key + u32(512))), read16(u32(other + u32(512)))
        s0, s1 = mma(s0, n[0], f[0], n[1], f[1], w[0], w[1]), mma(s1, n[0], f[0], n[1], f[1], x[0], x[1])
        s2, s3 = mma(s2, m[0], h[0], m[1], h[1], y[0], y[1]), mma(s3, m[0], h[0], m[1], h[1], z[0], z[1])
        s0, s1 = mma(s0, n[2], f[2], n[3], f[3], w[2], w[3]), mma(s1, n[2], f[2], n[3], f[3], x[2], x[3])
        s2, s3 = mma(s2, m[2], h[2], m[3], h[3], y[2], y[3]), mma(s3, m[2], h[2], m[3], h[3], z[2], z[3])
        return s0, s1, s2, s3

    @device_function
    def product(sums, p, a, b, c, d, selector):
        """Adds the dims that `selector` picks out of one word of each of four keys."""
        return mma(sums, p[0], p[1], p[2], p[3], select_bytes(a, b, selector), select_bytes(c, d, selector))

    return dots, product


def tiles_with(mma: Any, pair: Any, span: Any = all_before, see: Any = visible) -> Any:
    """`attend_tiles` for the tensor cores' product `mma` and the rounding of two floats into a word `pair`.

    span: which keys a row sees, as `all_before`; see: a score there, as `visible`, or `visible_within` where they begin behind 0.
    """
    dots, product = _products_with(mma, pair)
    new_keys, queries_of = new_keys_with(pair), queries_with(pair)

    @device_function
    def attend_tiles(
        base, stat, query_base, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping, table_row, kv_head,
        num_heads, token, group, share, page_share, first_pair, pairs, before, limit, keys, eps, scale, stores, warp, warps,
        block_place, places, lowest, start, skipped, ahead_entry, window, causal,
    ):  # fmt: skip
        """A warp's tiles of keys, the last of them first, which is under way: sums to its part of the ring, maximum and total to
        `stat`.

        block_place: int32, place of the block's first warp in its cluster. slot_mapping None: keys and values of the step are not
        stored. lowest, start: int32, the warp's tiles are start, start - places, .. lowest; start < lowest: it has none.
        skipped: int32, tiles in front of what any row sees. window, causal: for `span`.
        """
        head_dim, width = i32(k_cache.shape[3]), i32(qkv.shape[1])
        half, block_size = u32(head_dim * i32(16)), i32(k_cache.shape[1])
        key_at = i32((num_heads + kv_head) * head_dim)
        g, quad, last = i32(lane() >> i32(2)), i32(lane() & i32(3)), i32(pairs - i32(1))
        row = quotient(i32(first_pair + min(g, last)), share)
        far_row = quotient(i32(first_pair + min(i32(g + i32(8)), last)), share)
        near_begin, near_seen = span(before, row, keys, window, causal)
        far_begin, far_seen = span(before, far_row, keys, window, causal)
        mine, near = u32(base + u32(lane() * i32(16))), u32(query_base + u32(lane() * i32(16)))
        even, odd = u32(0x5410), u32(0x7632)
        scale = scale * f32(_LOG2_E)
        near_top, far_top, near_total, far_total = NEG_INF, NEG_INF, f32(0.0), f32(0.0)
        o0, o1, o2, o3, o4, o5, o6, o7 = nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing()
        u0, u1, u2, u3, u4, u5, u6, u7 = nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing()
        tile, waiting, begun = i32(start), True, False
        while waiting or tile >= lowest:
            first = i32(tile * i32(_KEYS))
            begin, end = max(first, limit), min(i32(first + i32(_KEYS)), keys)
            together = False
            who, among = warp, warps
            if waiting:
                fresh, owner = fresh_keys(keys, limit, places, skipped, block_place, warps)
                together = fresh > i32(_ALONE) and warps > i32(1)
                if not together and fresh > i32(0) and warps > i32(1):
                    # A warp that has keys of this step to do alone leaves the queries to the others.
                    among = i32(warps - i32(1))
                    who = i32(warp - owner - i32(1))
                    if who < i32(0):
                        who = i32(who + warps)
                    if who >= among:
                        who = pairs
                if warp >= warps:
                    who = pairs
            if together:  # many keys of this step: the warps of the block share them
                mixed = first_fresh(keys, limit, places, skipped)
                while i32(mixed * i32(_KEYS)) < keys:
                    part = part_of(mixed, places, skipped, block_place)
                    if part >= i32(0) and part < warps and warp < warps:
                        to = u32(base - u32(warp * i32(2 * _VALUES)) + u32(part * i32(2 * _VALUES)))
                        mixed_begin = i32(max(i32(mixed * i32(_KEYS)), limit) + warp)
                        mixed_end = min(i32((mixed + i32(1)) * i32(_KEYS)), keys)
                        new_keys(
                            to, k_cache, v_cache, qkv, k_gain, table, slot_mapping, width, token, key_at, before, mixed,
                            mixed_begin, mixed_end, warps, kv_head, stores, eps,
                        )  # fmt: skip
                    mixed = i32(mixed + i32(1))
            elif tile >= lowest and begin < end:
                warp_barrier()
                new_keys(
                    base, k_cache, v_cache, qkv, k_gain, table, slot_mapping, width, token, key_at, before, tile, begin, end,
                    i32(1), kv_head, stores, eps,
                )  # fmt: skip
                warp_barrier()
            if waiting:
                waiting = False
                queries_of(
                    query_base, qkv, q_gain, table, width, token, before, i32(keys - i32(1)), group, share, i32(kv_head * group),
                    first_pair, pairs, head_dim, eps, who, among,
                )  # fmt: skip
                cuda.syncthreads()
            if tile >= lowest:
                wait_first_copies()
                s0, s1, s2, s3 = dots(nothing(), nothing(), nothing(), nothing(), near, u32(near + half), mine, u32(mine + half))
                if head_dim > i32(64):
                    more = u32(near + u32(1024))
                    rest = u32(mine + u32(1024))
                    s0, s1, s2, s3 = dots(s0, s1, s2, s3, more, u32(more + half), rest, u32(rest + half))
                ahead = i32(tile - places)
                entry = ahead_entry
                if ahead >= lowest:
                    fetch_tile_keys(mine, k_cache, block_tables, table_row, kv_head, ahead, entry, limit, keys, page_share)
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
                w, x, y, z = four_values(u32(mine + u32(_VALUES)))
                o0, o1 = product(o0, p, w[0], x[0], y[0], z[0], even), product(o1, p, w[0], x[0], y[0], z[0], odd)
                o2, o3 = product(o2, p, w[1], x[1], y[1], z[1], even), product(o3, p, w[1], x[1], y[1], z[1], odd)
                o4, o5 = product(o4, p, w[2], x[2], y[2], z[2], even), product(o5, p, w[2], x[2], y[2], z[2], odd)
                o6, o7 = product(o6, p, w[3], x[3], y[3], z[3], even), product(o7, p, w[3], x[3], y[3], z[3], odd)
                if head_dim > i32(64):
                    w, x, y, z = four_values(u32(mine + u32(_VALUES + 2048)))
                    u0, u1 = product(u0, p, w[0], x[0], y[0], z[0], even), product(u1, p, w[0], x[0], y[0], z[0], odd)
                    u2, u3 = product(u2, p, w[1], x[1], y[1], z[1], even), product(u3, p, w[1], x[1], y[1], z[1], odd)
                    u4, u5 = product(u4, p, w[2], x[2], y[2], z[2], even), product(u5, p, w[2], x[2], y[2], z[2], odd)
                    u6, u7 = product(u6, p, w[3], x[3], y[3], z[3], even), product(u7, p, w[3], x[3], y[3], z[3], odd)
                begun = True
                if ahead >= lowest:
                    at = u32(mine + u32(_VALUES))
                    fetch_tile_values(at, v_cache, block_tables, table_row, kv_head, ahead, entry, limit, keys, page_share)
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
            far_chunk, with_far = i32(head_dim >> i32(4)), pairs > i32(8)
            keep_slab(base, i32(0), far_chunk, with_far, o0, o1, o2, o3, o4, o5, o6, o7)
            if head_dim > i32(64):
                keep_slab(base, i32(4), i32(far_chunk + i32(4)), with_far, u0, u1, u2, u3, u4, u5, u6, u7)

    return attend_tiles
