"""Heads of the step itself, from the projection to shared memory and to the cache (kernels/few_step_gpu.py).

A lane has dims lane and half + lane of a head, which turn against each other; of 128 dims lane + 32 and half + lane + 32 as well.
"""

from __future__ import annotations

from typing import Any

from kernels.few_pages_gpu import TILE_KEYS, cache_offset, quotient
from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import early_int, element, put_bits, write2
from kernels.lang_fast import inverse_root
from kernels.lang_warp import lane, warp_sum

VALUES = 16 * 128 * 2
"""Byte of a tile of keys and values where its values begin."""

_KEYS, _VALUES = TILE_KEYS, VALUES


@device_function
def head_of(array, offset, head_dim):
    """A lane's four elements; zeros for those that a head of 64 lacks."""
    at, half = i64(i32(offset + lane())), i64(i32(head_dim >> i32(1)))
    c, d = f32(0.0), f32(0.0)
    if head_dim > i32(64):
        c, d = element(array, at + i64(32)), element(array, at + half + i64(32))
    return element(array, at), element(array, at + half), c, d


@device_function
def inverse_width(head_dim):
    """1 / head_dim, exact for 64 and 128."""
    return f32(1.0 / 128) if head_dim > i32(64) else f32(1.0 / 64)


@device_function
def scale_of(x, gain, head_dim, eps):
    """1 / rms of a head, or 1 where a model has no norm of heads (gain None). By a whole warp."""
    scale = f32(1.0)
    if gain is not None:
        squares = f32(0.0)
        squares += x[0] * x[0]
        squares += x[2] * x[2]
        squares += x[1] * x[1]
        squares += x[3] * x[3]
        scale = inverse_root(warp_sum(squares) * inverse_width(head_dim) + eps)
    return scale


@device_function
def turned(x, scale, gain, gains, angles):
    """A head normalised by its `scale_of` and rotated: the operations of kernels/rotate.py in their order."""
    a, b, c, d = x
    a, b, c, d = a * scale, b * scale, c * scale, d * scale
    if gain is not None:
        a, b, c, d = a * gains[0], b * gains[1], c * gains[2], d * gains[3]
    return (
        a * angles[0] - b * angles[1],
        b * angles[0] + a * angles[1],
        c * angles[2] - d * angles[3],
        d * angles[2] + c * angles[3],
    )


@device_function
def gains_of(gain, head_dim):
    """A lane's gains; nothing that anybody reads where a model has no norm of heads."""
    if gain is None:
        return f32(1.0), f32(1.0), f32(1.0), f32(1.0)
    return head_of(gain, i32(0), head_dim)


@device_function
def put_row(base, row, head_dim, x):
    """A head, its words, into row `row` of a tile of keys or queries."""
    at = u32(base + u32((row >> i32(3)) * head_dim * i32(16) + (row & i32(7)) * i32(64) + lane() * i32(2)))
    write2(at, x[0])
    if head_dim > i32(64):
        write2(u32(at + u32(512)), x[2])
        write2(u32(at + u32(1024)), x[1])
        write2(u32(at + u32(1536)), x[3])
    else:
        write2(u32(at + u32(512)), x[1])


@device_function
def put_value(base, row, head_dim, x):
    """A value, its words, into row `row` of a tile of values."""
    slot = i32((row >> i32(3)) * i32(1024) + (row & i32(1)) * i32(512) + ((row & i32(7)) >> i32(1)) * i32(16))
    at = u32(base + u32(slot + (lane() >> i32(3)) * i32(64) + (lane() & i32(7)) * i32(2)))
    write2(at, x[0])
    if head_dim > i32(64):
        write2(u32(at + u32(256)), x[2])
        write2(u32(at + u32(2048)), x[1])
        write2(u32(at + u32(2304)), x[3])
    else:
        write2(u32(at + u32(256)), x[1])


@device_function
def store_head(cache, entry, kv_head, head_dim, x):
    """A head, its words, into the cache."""
    at, half = cache_offset(cache, entry, kv_head) + i64(lane()), i64(head_dim >> i32(1))
    put_bits(cache, at, x[0])
    put_bits(cache, at + half, x[1])
    if head_dim > i32(64):
        put_bits(cache, at + i64(32), x[2])
        put_bits(cache, at + half + i64(32), x[3])


def _words_with(pair: Any) -> Any:
    @device_function
    def words(x):
        """Four floats rounded to 16 bits, each in the low half of a word."""
        zero = f32(0.0)
        return pair(x[0], zero), pair(x[1], zero), pair(x[2], zero), pair(x[3], zero)

    return words


@device_function
def tile_at(base, tile, key):
    """Where the tile of a key lies, if that of number `tile` is at `base`; the ring parts of a block's warps are neighbours."""
    return u32(base + u32(i32((key >> i32(4)) - tile) * i32(2 * _VALUES)))


def new_keys_with(pair: Any) -> Any:
    words = _words_with(pair)

    @device_function
    def new_keys(
        base, k_cache, v_cache, qkv, k_gain, table, slot_mapping, width, token, key_at, before, tile, begin, end, step, kv_head,
        stores, eps,
    ):  # fmt: skip
        """Keys begin, begin + step, .. below end, and their values: to their tiles, where that of number `tile` is at `base`, and
        with `stores` to the cache. By a whole warp.

        key_at: of the key head within a row of qkv. slot_mapping None: nothing is stored. Two keys at a time: their loads are
        under way together.
        """
        head_dim = i32(k_cache.shape[3])
        gains = gains_of(k_gain, head_dim)
        value_at = i32(key_at + i32(k_cache.shape[2]) * head_dim)
        key = i32(begin)
        while key < end:
            other = i32(key + step) if i32(key + step) < end else key
            entry, other_entry = i32(-1), i32(-1)
            if slot_mapping is not None and stores:
                entry = early_int(slot_mapping, i64(i32(token + key - before)))
                other_entry = early_int(slot_mapping, i64(i32(token + other - before)))
            here, there = i32((token + key - before) * width), i32((token + other - before) * width)
            x0, x1 = head_of(qkv, i32(here + key_at), head_dim), head_of(qkv, i32(there + key_at), head_dim)
            v0, v1 = head_of(qkv, i32(here + value_at), head_dim), head_of(qkv, i32(there + value_at), head_dim)
            t0, t1 = head_of(table, i32(key * head_dim), head_dim), head_of(table, i32(other * head_dim), head_dim)
            c0, c1 = scale_of(x0, k_gain, head_dim, eps), scale_of(x1, k_gain, head_dim, eps)
            k0, w0 = words(turned(x0, c0, k_gain, gains, t0)), words(v0)
            at, row = tile_at(base, tile, key), i32(key & i32(_KEYS - 1))
            put_row(at, row, head_dim, k0)
            put_value(u32(at + u32(_VALUES)), row, head_dim, w0)
            if entry >= i32(0):
                store_head(k_cache, entry, kv_head, head_dim, k0)
                store_head(v_cache, entry, kv_head, head_dim, w0)
            if other > key:
                k1, w1 = words(turned(x1, c1, k_gain, gains, t1)), words(v1)
                at, row = tile_at(base, tile, other), i32(other & i32(_KEYS - 1))
                put_row(at, row, head_dim, k1)
                put_value(u32(at + u32(_VALUES)), row, head_dim, w1)
                if other_entry >= i32(0):
                    store_head(k_cache, other_entry, kv_head, head_dim, k1)
                    store_head(v_cache, other_entry, kv_head, head_dim, w1)
            key = i32(key + i32(2) * step)

    return new_keys


def queries_with(pair: Any) -> Any:
    words = _words_with(pair)

    @device_function
    def queries(
        base, qkv, gain, table, width, token, before, last_key, group, share, first_head, first_pair, pairs, head_dim, eps, who,
        among,
    ):  # fmt: skip
        """Pairs who, who + among, .. rotated, to rows of the tile at `base`. By a whole warp; as many as four at a time."""
        gains = gains_of(gain, head_dim)
        p = i32(who)
        while p < pairs:
            last = i32(pairs - i32(1))
            p1, p2, p3 = i32(p + among), i32(p + i32(2) * among), i32(p + i32(3) * among)
            r0, r1 = quotient(i32(first_pair + p), share), quotient(i32(first_pair + min(p1, last)), share)
            r2, r3 = quotient(i32(first_pair + min(p2, last)), share), quotient(i32(first_pair + min(p3, last)), share)
            head = i32(first_head + first_pair)
            h0, h1 = i32(head + p - r0 * group), i32(head + min(p1, last) - r1 * group)
            h2, h3 = i32(head + min(p2, last) - r2 * group), i32(head + min(p3, last) - r3 * group)
            x0 = head_of(qkv, i32((token + r0) * width + h0 * head_dim), head_dim)
            x1 = head_of(qkv, i32((token + r1) * width + h1 * head_dim), head_dim)
            x2 = head_of(qkv, i32((token + r2) * width + h2 * head_dim), head_dim)
            x3 = head_of(qkv, i32((token + r3) * width + h3 * head_dim), head_dim)
            t0 = head_of(table, i32(min(i32(before + r0), last_key) * head_dim), head_dim)
            t1 = head_of(table, i32(min(i32(before + r1), last_key) * head_dim), head_dim)
            t2 = head_of(table, i32(min(i32(before + r2), last_key) * head_dim), head_dim)
            t3 = head_of(table, i32(min(i32(before + r3), last_key) * head_dim), head_dim)
            c0, c1 = scale_of(x0, gain, head_dim, eps), scale_of(x1, gain, head_dim, eps)
            c2, c3 = scale_of(x2, gain, head_dim, eps), scale_of(x3, gain, head_dim, eps)
            put_row(base, p, head_dim, words(turned(x0, c0, gain, gains, t0)))
            if p1 < pairs:
                put_row(base, p1, head_dim, words(turned(x1, c1, gain, gains, t1)))
            if p2 < pairs:
                put_row(base, p2, head_dim, words(turned(x2, c2, gain, gains, t2)))
            if p3 < pairs:
                put_row(base, p3, head_dim, words(turned(x3, c3, gain, gains, t3)))
            p = i32(p + i32(i32(4) * among))

    return queries
