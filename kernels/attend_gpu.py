"""The GPU's forms of the two products of attention (kernels/attend_tile.py) over 16-bit queries, keys and values.

Scores: keys stand where a projection has weight rows, so kernels/tile_gpu.py's layout serves. Values: lane 4 g + q loads 8 dims
of four keys and pairs them up by `prmt`, because the tensor cores want two neighbouring keys of one dim in a word
(FlashAttention 2, Dao, 2023, keeps the same operands in registers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, i32, i64, u32
from kernels.lang_mma import (
    commit_copies,
    copy16,
    load16,
    mma_bfloat16,
    mma_float16,
    pair_bfloat16,
    pair_float16,
    read16,
    ring_address,
    select_bytes,
    wait_copies,
    wait_first_copies,
)
from kernels.lang_warp import lane
from kernels.tile_gpu import no_sums

_SLAB = 64
_PAIRS = 16


@device_function
def cache_row(cache, block_tables, slot, kv_head, key):
    """Offset of the elements of one key of a kv head in the paged cache."""
    block_size, heads, head_dim = i32(cache.shape[1]), i32(cache.shape[2]), i32(cache.shape[3])
    page = i32(u32(key) // u32(block_size))
    block = max(block_tables[slot, page], i32(0))
    entry = i64(block) * i64(block_size) + i64(key - page * block_size)
    return (entry * i64(heads) + i64(kv_head)) * i64(head_dim)


@device_function
def query_row(query, token, first_head, group, pair):
    """Offset of the query of a pair: row pair // group of the request, head pair % group of the kv head's heads."""
    row = i32(u32(pair) // u32(group))
    return i64(token + row) * i64(query.shape[1]), first_head + pair - row * group


@device_function
def lane_slots(ring):
    """This lane's first slot of 16 bytes; the next is 512 bytes on. Which slots are a warp's own, its keys decide."""
    return u32(ring_address(ring) + u32(u32(lane()) * u32(16)))


def fetch_keys_form(ring, k_cache, block_tables, slot, kv_head, start, keys, warp, warps):
    place, column = lane() >> i32(2), i64((lane() & i32(3)) * i32(8))
    head_dim = i32(k_cache.shape[3])
    key = i32(warp * i32(8))
    while key < keys:
        row = cache_row(k_cache, block_tables, slot, kv_head, start + min(key + place, keys - i32(1))) + column
        to = u32(lane_slots(ring) + u32(u32(key * (head_dim >> i32(5))) * u32(64)))
        k = i32(0)
        while k < head_dim:
            copy16(to, k_cache, row + i64(k), u32(16))
            to = u32(to + u32(512))
            k += i32(32)
        key = i32(key + warps * i32(8))
    commit_copies()


def fetch_values_form(ring, v_cache, block_tables, slot, kv_head, start, share_keys, keys, slabs, parts, warp, warps):
    place, quad = lane() >> i32(2), lane() & i32(3)
    last = keys - i32(1)
    unit = i32(warp)
    while unit < slabs * parts:
        part = i32(u32(unit) // u32(slabs))
        column = i64((unit - part * slabs) * i32(_SLAB) + place * i32(8))
        to = u32(lane_slots(ring) + u32(u32(unit * share_keys) * u32(128)))
        key = i32(part * share_keys)
        while key < min((part + i32(1)) * share_keys, keys):
            first = key + quad * i32(2)
            for j in range(4):
                other = min(first + i32(j // 2 * 8 + j % 2), last)
                copy16(to, v_cache, cache_row(v_cache, block_tables, slot, kv_head, start + other) + column, u32(16))
                to = u32(to + u32(512))
            key = i32(key + i32(16))
        unit = i32(unit + warps)
    commit_copies()


def _scores(mma: Any) -> Callable[..., Any]:
    def scores_form(
        scores, width, ring, query, k_cache, block_tables, slot, kv_head, token, group, first_pair, pairs, start, keys, warp, warps
    ):
        head_dim = i32(k_cache.shape[3])
        place, quad = lane() >> i32(2), lane() & i32(3)
        row, head = query_row(query, token, kv_head * group, group, first_pair + min(place, pairs - i32(1)))
        near = row + i64(head) * i64(head_dim) + i64(quad * i32(8))
        row, head = query_row(query, token, kv_head * group, group, first_pair + min(place + i32(8), pairs - i32(1)))
        far = row + i64(head) * i64(head_dim) + i64(quad * i32(8))
        n, f = load16(query, near), load16(query, far)  # under way with the keys; then always one step of 64 dims ahead
        m, g = load16(query, near + i64(32)), load16(query, far + i64(32))
        wait_first_copies()
        key = i32(warp * i32(8))
        while key < keys:
            at = u32(lane_slots(ring) + u32(u32(key * (head_dim >> i32(5))) * u32(64)))
            sums = no_sums()
            k = i32(0)
            while k < head_dim:
                k = i32(k + i32(64))
                ahead = i64(0)
                if k < head_dim:
                    ahead = i64(k)
                w, v = read16(at), read16(u32(at + u32(512)))
                sums = mma(sums, n[0], f[0], n[1], f[1], w[0], w[1])
                sums = mma(sums, n[2], f[2], n[3], f[3], w[2], w[3])
                n, f = load16(query, near + ahead), load16(query, far + ahead)
                sums = mma(sums, m[0], g[0], m[1], g[1], v[0], v[1])
                sums = mma(sums, m[2], g[2], m[3], g[3], v[2], v[3])
                m, g = load16(query, near + ahead + i64(32)), load16(query, far + ahead + i64(32))
                at = u32(at + u32(1024))
            to = place * width + key + quad * i32(2)
            scores[to] = sums[0]
            scores[to + i32(1)] = sums[1]
            scores[to + i32(8) * width] = sums[2]
            scores[to + i32(8) * width + i32(1)] = sums[3]
            key = i32(key + warps * i32(8))

    return scores_form


def _values(mma: Any, pair: Any) -> Callable[..., Any]:
    @device_function
    def product(sums, p, a, b, c, d, selector):
        """Adds the dims that `selector` picks out of one word of each of four keys."""
        return mma(sums, p[0], p[1], p[2], p[3], select_bytes(a, b, selector), select_bytes(c, d, selector))

    @device_function
    def keep(totals, at, sums, dim):
        """Rows g and g + 8, dims 16 q + dim and 16 q + 8 + dim."""
        totals[at + dim] = sums[0]
        totals[at + dim + i32(8)] = sums[1]
        totals[at + dim + i32(8 * _SLAB)] = sums[2]
        totals[at + dim + i32(8 * _SLAB + 8)] = sums[3]

    def values_form(
        totals, unit, shares, width, ring, v_cache, block_tables, slot, kv_head, pairs, start, begin, end, keys, dim
    ):
        place, quad = lane() >> i32(2), lane() & i32(3)
        even, odd = u32(0x5410), u32(0x7632)
        s0, s1, s2, s3 = no_sums(), no_sums(), no_sums(), no_sums()
        s4, s5, s6, s7 = no_sums(), no_sums(), no_sums(), no_sums()
        share_keys = end - begin
        from_slot = u32(lane_slots(ring) + u32(u32(unit * share_keys) * u32(128)))
        wait_copies()
        key = i32(begin)
        while key < min(end, keys):
            a, b = read16(from_slot), read16(u32(from_slot + u32(512)))
            c, d = read16(u32(from_slot + u32(1024))), read16(u32(from_slot + u32(1536)))
            from_slot = u32(from_slot + u32(2048))
            at = place * width + key + quad * i32(2)
            below = at + i32(8) * width
            p = (
                pair(shares[at], shares[at + i32(1)]),
                pair(shares[below], shares[below + i32(1)]),
                pair(shares[at + i32(8)], shares[at + i32(9)]),
                pair(shares[below + i32(8)], shares[below + i32(9)]),
            )
            s0, s1 = product(s0, p, a[0], b[0], c[0], d[0], even), product(s1, p, a[0], b[0], c[0], d[0], odd)
            s2, s3 = product(s2, p, a[1], b[1], c[1], d[1], even), product(s3, p, a[1], b[1], c[1], d[1], odd)
            s4, s5 = product(s4, p, a[2], b[2], c[2], d[2], even), product(s5, p, a[2], b[2], c[2], d[2], odd)
            s6, s7 = product(s6, p, a[3], b[3], c[3], d[3], even), product(s7, p, a[3], b[3], c[3], d[3], odd)
            key = i32(key + i32(16))
        to = (unit * i32(_PAIRS) + place) * i32(_SLAB) + quad * i32(16)
        keep(totals, to, s0, i32(0))
        keep(totals, to, s1, i32(1))
        keep(totals, to, s2, i32(2))
        keep(totals, to, s3, i32(3))
        keep(totals, to, s4, i32(4))
        keep(totals, to, s5, i32(5))
        keep(totals, to, s6, i32(6))
        keep(totals, to, s7, i32(7))

    return values_form


SCORES = {"uint16": _scores(mma_bfloat16), "float16": _scores(mma_float16)}
VALUES = {"uint16": _values(mma_bfloat16, pair_bfloat16), "float16": _values(mma_float16, pair_float16)}
"""By the type of the cache; anything else runs in the common form."""
