"""The GPU's forms of kernels/attend_step.py over 16-bit keys and values: a warp takes sixteen keys against sixteen pairs at a time.

Scores, shares and sums stay in the registers of the tensor cores' operands (FlashAttention 2, Dao, 2023). Keys and values come by
asynchronous copies, a lane's own to slots of its own, so that a warp needs no barrier for them. A tile of sixteen rows of 32 dims
is laid out as the operand wants it: 16 bytes of a lane at lane * 16, the rows 8 to 15 behind those of rows 0 to 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_gpu import cache_row, lane_slots
from kernels.exponential import exp
from kernels.lang import NEG_INF, device_function, f32, i32, i64, u32
from kernels.lang_mma import (
    commit_copies,
    copy16,
    mma_bfloat16,
    mma_float16,
    pair_bfloat16,
    pair_float16,
    read16,
    ring_address,
    ring_offset,
    select_bytes,
    wait_copies,
    wait_first_copies,
    write2,
    write16,
)
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, quad_max, quad_sum, warp_barrier
from kernels.rotate import head_pairs, turned_pairs
from kernels.tile_gpu import no_sums

_KEYS = 16
_BYTES = 32 * 128 * 2  # of a warp's part of the ring: sixteen keys and values of 128 dims
_VALUES = 16 * 128 * 2  # where its values begin


@device_function
def row_place(head_dim, row, dim):
    """Byte of an element in a tile of sixteen rows: keys, or queries."""
    slot = (row >> i32(3)) * (head_dim >> i32(5)) + (dim >> i32(5))
    return u32(slot * i32(512) + ((row & i32(7)) * i32(4) + ((dim & i32(31)) >> i32(3))) * i32(16) + (dim & i32(7)) * i32(2))


@device_function
def value_place(key, dim):
    """Byte of an element in a tile of sixteen values: lane 4 g + q has 8 dims of keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9."""
    slot = (dim >> i32(6)) * i32(4) + (key >> i32(3)) * i32(2) + (key & i32(1))
    spot = ((dim & i32(63)) >> i32(3)) * i32(4) + ((key & i32(7)) >> i32(1))
    return u32(slot * i32(512) + spot * i32(16) + (dim & i32(7)) * i32(2))


@device_function
def key_row(cache, block_tables, slot, kv_head, first, block, key):
    """Offset of a key of the tile that begins at key `first`, in page `block` where all its keys share one."""
    block_size = i32(cache.shape[1])
    if (block_size & i32(_KEYS - 1)) != i32(0):
        return cache_row(cache, block_tables, slot, kv_head, key)
    entry = i64(block) + i64(key - first)
    return (entry * i64(cache.shape[2]) + i64(kv_head)) * i64(cache.shape[3])


@device_function
def tile_entry(cache, block_tables, slot, first):
    """Entry of the cache where the page of a tile has its first key; meaningless where pages are no multiples of tiles."""
    block_size = i32(cache.shape[1])
    page = min(i32(u32(first) // u32(block_size)), i32(block_tables.shape[1] - 1))
    return i32(max(block_tables[slot, page], i32(0)) * block_size + first - page * block_size)


@device_function
def fetch_tile_keys(ring, k_cache, block_tables, slot, kv_head, tile, limit, warp):
    """Sixteen keys under way to the warp's part of the ring: zeros from key `limit` on."""
    head_dim, first = i32(k_cache.shape[3]), tile * i32(_KEYS)
    to = u32(lane_slots(ring) + u32(warp * i32(_BYTES)))
    if first < limit:
        entry = tile_entry(k_cache, block_tables, slot, first)
        for octet in range(2):
            key = first + i32(octet * 8) + (lane() >> i32(2))
            size = u32(16)
            if key >= limit:
                size, key = u32(0), limit - i32(1)
            row = key_row(k_cache, block_tables, slot, kv_head, first, entry, key) + i64((lane() & i32(3)) * i32(8))
            k = i32(0)
            while k < head_dim:
                copy16(to, k_cache, row + i64(k), size)
                to = u32(to + u32(512))
                k += i32(32)
    else:
        zero_tile(to, k_cache, head_dim)
    commit_copies()


@device_function
def fetch_tile_values(ring, v_cache, block_tables, slot, kv_head, tile, limit, warp):
    """The same for the values."""
    head_dim, first = i32(v_cache.shape[3]), tile * i32(_KEYS)
    to = u32(lane_slots(ring) + u32(warp * i32(_BYTES) + i32(_VALUES)))
    if first < limit:
        entry = tile_entry(v_cache, block_tables, slot, first)
        for j in range(4):
            key = first + (lane() & i32(3)) * i32(2) + i32(j // 2 * 8 + j % 2)
            size = u32(16)
            if key >= limit:
                size, key = u32(0), limit - i32(1)
            row = key_row(v_cache, block_tables, slot, kv_head, first, entry, key) + i64((lane() >> i32(2)) * i32(8))
            copy16(u32(to + u32(j * 512)), v_cache, row, size)
            if head_dim > i32(64):
                copy16(u32(to + u32(j * 512 + 2048)), v_cache, row + i64(64), size)
    else:
        zero_tile(to, v_cache, head_dim)
    commit_copies()


@device_function
def zero_tile(to, cache, head_dim):
    """A lane's slots of a tile of which the cache holds nothing yet."""
    k = i32(0)
    while k < head_dim:
        copy16(to, cache, i64(0), u32(0))
        copy16(u32(to + u32(512)), cache, i64(0), u32(0))
        to = u32(to + u32(1024))
        k += i32(32)


def fetch_form(ring, k_cache, v_cache, block_tables, slot, kv_head, tile, limit, keys, warp):
    if tile * i32(_KEYS) < keys:
        fetch_tile_keys(ring, k_cache, block_tables, slot, kv_head, tile, limit, warp)
        fetch_tile_values(ring, v_cache, block_tables, slot, kv_head, tile, limit, warp)


def _put(pair: Any) -> Any:
    @device_function
    def put(base, head_dim, row, values):
        """A head's four floats of this lane, dims lane, lane + 32, .., into a tile."""
        half, dim = head_dim >> i32(1), lane()
        write2(u32(base + row_place(head_dim, row, dim)), pair(values[0], f32(0.0)))
        write2(u32(base + row_place(head_dim, row, half + dim)), pair(values[1], f32(0.0)))
        if head_dim > i32(64):
            write2(u32(base + row_place(head_dim, row, i32(32) + dim)), pair(values[2], f32(0.0)))
            write2(u32(base + row_place(head_dim, row, half + i32(32) + dim)), pair(values[3], f32(0.0)))

    return put


def _queries(pair: Any) -> Callable[..., Any]:
    put = _put(pair)

    @device_function
    def load(qkv, positions, token, group, head, pair_index, head_dim):
        row = token + i32(u32(pair_index) // u32(group))
        return head_pairs(qkv, row, head + pair_index - (row - token) * group, head_dim), positions[row]

    def queries_form(
        queries, k_cache, qkv, gain, table, positions, token, group, kv_head, first_pair, pairs, eps, warp, warps
    ):
        head_dim, head, base = i32(k_cache.shape[3]), kv_head * group, ring_address(queries)
        last = pairs - i32(1)
        p = i32(warp)
        while p < pairs:  # four at a time: their loads are under way together
            p1, p2, p3 = min(p + warps, last), min(p + i32(2) * warps, last), min(p + i32(3) * warps, last)
            x0, at0 = load(qkv, positions, token, group, head, first_pair + p, head_dim)
            x1, at1 = load(qkv, positions, token, group, head, first_pair + p1, head_dim)
            x2, at2 = load(qkv, positions, token, group, head, first_pair + p2, head_dim)
            x3, at3 = load(qkv, positions, token, group, head, first_pair + p3, head_dim)
            y0, y1 = turned_pairs(x0, table, at0, gain, head_dim, eps), turned_pairs(x1, table, at1, gain, head_dim, eps)
            y2, y3 = turned_pairs(x2, table, at2, gain, head_dim, eps), turned_pairs(x3, table, at3, gain, head_dim, eps)
            put(base, head_dim, p, y0)
            put(base, head_dim, p1, y1)
            put(base, head_dim, p2, y2)
            put(base, head_dim, p3, y3)
            p += i32(4) * warps

    return queries_form


def _keys(mma: Any, pair: Any) -> Callable[..., Any]:
    put = _put(pair)

    @device_function
    def put_value(base, head_dim, row, values):
        half, dim = head_dim >> i32(1), lane()
        write2(u32(base + value_place(row, dim)), pair(values[0], f32(0.0)))
        write2(u32(base + value_place(row, half + dim)), pair(values[1], f32(0.0)))
        if head_dim > i32(64):
            write2(u32(base + value_place(row, i32(32) + dim)), pair(values[2], f32(0.0)))
            write2(u32(base + value_place(row, half + i32(32) + dim)), pair(values[3], f32(0.0)))

    @device_function
    def store(cache, entry, kv_head, values):
        block_size, half, dim = i32(cache.shape[1]), i32(cache.shape[3]) >> i32(1), lane()
        block = i32(u32(entry) // u32(block_size))
        offset = entry - block * block_size
        cache[block, offset, kv_head, dim] = narrow(values[0], cache)
        cache[block, offset, kv_head, half + dim] = narrow(values[1], cache)
        if half > i32(32):
            cache[block, offset, kv_head, i32(32) + dim] = narrow(values[2], cache)
            cache[block, offset, kv_head, half + i32(32) + dim] = narrow(values[3], cache)

    @device_function
    def put_fresh(
        base, k_cache, v_cache, qkv, k_gain, table, positions, slot_mapping, token, num_heads, kv_head, first, begin, end, row, eps,
        stores,
    ):  # fmt: skip
        """Keys begin .. end of the tile that begins at key `first`; the first of them is that of row `row` of the step."""
        head_dim, kv_heads = i32(k_cache.shape[3]), i32(k_cache.shape[2])
        key_head, value_head = num_heads + kv_head, num_heads + kv_heads + kv_head
        key = begin
        while key < end:  # two at a time
            other = min(key + i32(1), end - i32(1))
            here, there = row + key - begin, row + other - begin
            x0, x1 = head_pairs(qkv, here, key_head, head_dim), head_pairs(qkv, there, key_head, head_dim)
            v0, v1 = head_pairs(qkv, here, value_head, head_dim), head_pairs(qkv, there, value_head, head_dim)
            k0 = turned_pairs(x0, table, positions[here], k_gain, head_dim, eps)
            k1 = turned_pairs(x1, table, positions[there], k_gain, head_dim, eps)
            put(base, head_dim, key - first, k0)
            put_value(u32(base + u32(_VALUES)), head_dim, key - first, v0)
            put(base, head_dim, other - first, k1)
            put_value(u32(base + u32(_VALUES)), head_dim, other - first, v1)
            if stores:
                entry, next_entry = slot_mapping[here], slot_mapping[there]
                if entry >= i32(0):
                    store(k_cache, entry, kv_head, k0)
                    store(v_cache, entry, kv_head, v0)
                if next_entry >= i32(0):
                    store(k_cache, next_entry, kv_head, k1)
                    store(v_cache, next_entry, kv_head, v1)
            key += i32(2)

    @device_function
    def visible(score, key, seen, scale):
        if key < seen:
            return score * scale
        return NEG_INF

    @device_function
    def scaled(sums, near, far):
        return sums[0] * near, sums[1] * near, sums[2] * far, sums[3] * far

    @device_function
    def product(sums, p, a, b, c, d, selector):
        """Adds the dims that `selector` picks out of one word of each of four keys."""
        return mma(sums, p[0], p[1], p[2], p[3], select_bytes(a, b, selector), select_bytes(c, d, selector))

    @device_function
    def four_values(at):
        """A lane's 8 dims of four keys."""
        return read16(at), read16(u32(at + u32(512))), read16(u32(at + u32(1024))), read16(u32(at + u32(1536)))

    @device_function
    def keep(base, chunk, a, b, c, d):
        """Four neighbouring dims of a row; rotated by chunk, so that who reads 32 neighbours (`sum_place_form`) meets 32 banks."""
        turned = u32((lane() * i32(16) + (chunk & i32(3)) * i32(32)) & i32(511))
        write16(u32(base + u32(chunk * i32(512)) + turned), a, b, c, d)

    @device_function
    def keep_slab(base, near, far, a, b, c, d, e, f, g, h):
        """The sums of 64 dims: a lane has 16 of them, dims 16 q on, of rows g and g + 8."""
        keep(base, near, a[0], b[0], c[0], d[0])
        keep(base, near + i32(1), e[0], f[0], g[0], h[0])
        keep(base, near + i32(2), a[1], b[1], c[1], d[1])
        keep(base, near + i32(3), e[1], f[1], g[1], h[1])
        keep(base, far, a[2], b[2], c[2], d[2])
        keep(base, far + i32(1), e[2], f[2], g[2], h[2])
        keep(base, far + i32(2), a[3], b[3], c[3], d[3])
        keep(base, far + i32(3), e[3], f[3], g[3], h[3])

    def keys_form(
        ring, k_cache, v_cache, stats, queries, qkv, k_gain, table, block_tables, positions, slot_mapping, slot, kv_head, num_heads,
        token, group, first_pair, pairs, limit, keys, eps, scale, stores, warp, place, places,
    ):  # fmt: skip
        head_dim, half_slots = i32(k_cache.shape[3]), u32(u32(k_cache.shape[3]) * u32(16))  # slots of eight rows
        g, quad, last = lane() >> i32(2), lane() & i32(3), pairs - i32(1)
        near_seen = positions[token + i32(u32(first_pair + min(g, last)) // u32(group))] + i32(1)
        far_seen = positions[token + i32(u32(first_pair + min(g + i32(8), last)) // u32(group))] + i32(1)
        base = u32(ring_address(ring) + u32(warp * i32(_BYTES)))
        mine, query_slots = u32(base + u32(lane() * i32(16))), lane_slots(queries)
        even, odd = u32(0x5410), u32(0x7632)
        near_top, far_top, near_total, far_total = NEG_INF, NEG_INF, f32(0.0), f32(0.0)
        o0, o1, o2, o3 = no_sums(), no_sums(), no_sums(), no_sums()
        o4, o5, o6, o7 = no_sums(), no_sums(), no_sums(), no_sums()
        u0, u1, u2, u3 = no_sums(), no_sums(), no_sums(), no_sums()
        u4, u5, u6, u7 = no_sums(), no_sums(), no_sums(), no_sums()
        tile = i32(place)
        while tile * i32(_KEYS) < keys:
            first = tile * i32(_KEYS)
            begin, end = max(first, limit), min(first + i32(_KEYS), keys)
            wait_first_copies()
            if begin < end:
                wait_copies()
                warp_barrier()
                put_fresh(
                    base, k_cache, v_cache, qkv, k_gain, table, positions, slot_mapping, token, num_heads, kv_head, first, begin,
                    end, token + begin - limit, eps, stores,
                )  # fmt: skip
                warp_barrier()
            s0, s1, s2, s3 = no_sums(), no_sums(), no_sums(), no_sums()
            k, key_slots, near_slots = i32(0), mine, query_slots
            while k < head_dim:
                n, f = read16(near_slots), read16(u32(near_slots + half_slots))
                m, h = read16(u32(near_slots + u32(512))), read16(u32(near_slots + half_slots + u32(512)))
                w, x = read16(key_slots), read16(u32(key_slots + half_slots))
                y, z = read16(u32(key_slots + u32(512))), read16(u32(key_slots + half_slots + u32(512)))
                s0, s1 = mma(s0, n[0], f[0], n[1], f[1], w[0], w[1]), mma(s1, n[0], f[0], n[1], f[1], x[0], x[1])
                s2, s3 = mma(s2, m[0], h[0], m[1], h[1], y[0], y[1]), mma(s3, m[0], h[0], m[1], h[1], z[0], z[1])
                s0, s1 = mma(s0, n[2], f[2], n[3], f[3], w[2], w[3]), mma(s1, n[2], f[2], n[3], f[3], x[2], x[3])
                s2, s3 = mma(s2, m[2], h[2], m[3], h[3], y[2], y[3]), mma(s3, m[2], h[2], m[3], h[3], z[2], z[3])
                k += i32(64)
                key_slots, near_slots = u32(key_slots + u32(1024)), u32(near_slots + u32(1024))
            ahead = tile + places
            if ahead * i32(_KEYS) < keys:
                fetch_tile_keys(ring, k_cache, block_tables, slot, kv_head, ahead, limit, warp)
            else:
                commit_copies()
            key = first + quad * i32(2)
            a, b = visible(s0[0] + s2[0], key, near_seen, scale), visible(s0[1] + s2[1], key + i32(1), near_seen, scale)
            c, d = visible(s1[0] + s3[0], key + i32(8), near_seen, scale), visible(s1[1] + s3[1], key + i32(9), near_seen, scale)
            near = max(near_top, quad_max(max(max(a, b), max(c, d))))
            shift = near
            if near == NEG_INF:
                shift = f32(0.0)
            a, b, c, d = exp(a - shift), exp(b - shift), exp(c - shift), exp(d - shift)
            near_keep = exp(near_top - shift)
            near_total = near_total * near_keep + ((a + b) + (c + d))
            near_top = near
            p0, p2 = pair(a, b), pair(c, d)
            a, b = visible(s0[2] + s2[2], key, far_seen, scale), visible(s0[3] + s2[3], key + i32(1), far_seen, scale)
            c, d = visible(s1[2] + s3[2], key + i32(8), far_seen, scale), visible(s1[3] + s3[3], key + i32(9), far_seen, scale)
            far = max(far_top, quad_max(max(max(a, b), max(c, d))))
            shift = far
            if far == NEG_INF:
                shift = f32(0.0)
            a, b, c, d = exp(a - shift), exp(b - shift), exp(c - shift), exp(d - shift)
            far_keep = exp(far_top - shift)
            far_total = far_total * far_keep + ((a + b) + (c + d))
            far_top = far
            p = (p0, pair(a, b), p2, pair(c, d))
            wait_first_copies()
            o0, o1 = scaled(o0, near_keep, far_keep), scaled(o1, near_keep, far_keep)
            o2, o3 = scaled(o2, near_keep, far_keep), scaled(o3, near_keep, far_keep)
            o4, o5 = scaled(o4, near_keep, far_keep), scaled(o5, near_keep, far_keep)
            o6, o7 = scaled(o6, near_keep, far_keep), scaled(o7, near_keep, far_keep)
            v0, v1, v2, v3 = four_values(u32(mine + u32(_VALUES)))
            o0, o1 = product(o0, p, v0[0], v1[0], v2[0], v3[0], even), product(o1, p, v0[0], v1[0], v2[0], v3[0], odd)
            o2, o3 = product(o2, p, v0[1], v1[1], v2[1], v3[1], even), product(o3, p, v0[1], v1[1], v2[1], v3[1], odd)
            o4, o5 = product(o4, p, v0[2], v1[2], v2[2], v3[2], even), product(o5, p, v0[2], v1[2], v2[2], v3[2], odd)
            o6, o7 = product(o6, p, v0[3], v1[3], v2[3], v3[3], even), product(o7, p, v0[3], v1[3], v2[3], v3[3], odd)
            if head_dim > i32(64):
                u0, u1 = scaled(u0, near_keep, far_keep), scaled(u1, near_keep, far_keep)
                u2, u3 = scaled(u2, near_keep, far_keep), scaled(u3, near_keep, far_keep)
                u4, u5 = scaled(u4, near_keep, far_keep), scaled(u5, near_keep, far_keep)
                u6, u7 = scaled(u6, near_keep, far_keep), scaled(u7, near_keep, far_keep)
                v0, v1, v2, v3 = four_values(u32(mine + u32(_VALUES + 2048)))
                u0, u1 = product(u0, p, v0[0], v1[0], v2[0], v3[0], even), product(u1, p, v0[0], v1[0], v2[0], v3[0], odd)
                u2, u3 = product(u2, p, v0[1], v1[1], v2[1], v3[1], even), product(u3, p, v0[1], v1[1], v2[1], v3[1], odd)
                u4, u5 = product(u4, p, v0[2], v1[2], v2[2], v3[2], even), product(u5, p, v0[2], v1[2], v2[2], v3[2], odd)
                u6, u7 = product(u6, p, v0[3], v1[3], v2[3], v3[3], even), product(u7, p, v0[3], v1[3], v2[3], v3[3], odd)
            if ahead * i32(_KEYS) < keys:
                fetch_tile_values(ring, v_cache, block_tables, slot, kv_head, ahead, limit, warp)
            else:
                commit_copies()
            tile = i32(ahead)
        near_total, far_total = quad_sum(near_total), quad_sum(far_total)
        if quad == i32(0):
            at = warp * i32(32) + g
            stats[at] = near_top
            stats[at + i32(8)] = far_top
            stats[at + i32(16)] = near_total
            stats[at + i32(24)] = far_total
        wait_copies()
        warp_barrier()  # the sums take the place of keys and values, of all lanes
        far_chunk = head_dim >> i32(4)
        keep_slab(base, i32(0), far_chunk, o0, o1, o2, o3, o4, o5, o6, o7)
        if head_dim > i32(64):
            keep_slab(base, i32(4), far_chunk + i32(4), u0, u1, u2, u3, u4, u5, u6, u7)

    return keys_form


def sum_place_form(ring, cache, warp, p, d):
    chunk = ((p >> i32(3)) * (i32(cache.shape[3]) >> i32(6)) + (d >> i32(6))) * i32(4) + ((d & i32(15)) >> i32(2))
    spot = (((p & i32(7)) * i32(4) + ((d & i32(63)) >> i32(4))) * i32(4) + (chunk & i32(3)) * i32(8)) & i32(127)
    return ring_offset(ring) + warp * i32(_BYTES // 4) + chunk * i32(128) + spot + (d & i32(3))


def holds_form(ring, k_cache):
    return True


FETCH = {"uint16": fetch_form, "float16": fetch_form}
HOLDS = {"uint16": holds_form, "float16": holds_form}
SUM_PLACE = {"uint16": sum_place_form, "float16": sum_place_form}
QUERIES = {"uint16": _queries(pair_bfloat16), "float16": _queries(pair_float16)}
KEYS = {"uint16": _keys(mma_bfloat16, pair_bfloat16), "float16": _keys(mma_float16, pair_float16)}
"""By the type of the cache; anything else runs in the common form."""
