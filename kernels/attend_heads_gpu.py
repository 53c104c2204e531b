"""Heads of the step itself, from the projection to shared memory and to the cache (kernels/attend_step_gpu.py).

A lane has dims lane and half + lane of a head, which turn against each other; of 128 dims lane + 32 and half + lane + 32 as well.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import TILE_KEYS, cache_offset, quotient
from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import early_int, element, put_bits
from kernels.lang_fast import inverse_root
from kernels.lang_warp import lane, warp_sum
from kernels.rotate import kept

_KEYS = TILE_KEYS


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
def store_head(cache, entry, kv_head, head_dim, x):
    """A head, its words, into the cache."""
    at, half = cache_offset(cache, entry, kv_head) + i64(lane()), i64(head_dim >> i32(1))
    put_bits(cache, at, x[0])
    put_bits(cache, at + half, x[1])
    if head_dim > i32(64):
        put_bits(cache, at + i64(32), x[2])
        put_bits(cache, at + half + i64(32), x[3])


@device_function
def kept_heads(k, v, cache):
    """A lane's elements of a key and its value, as kernels/rotate.py keeps them."""
    (a, e), (b, f) = kept(k[0], v[0], cache), kept(k[1], v[1], cache)
    (c, g), (d, h) = kept(k[2], v[2], cache), kept(k[3], v[3], cache)
    return (a, b, c, d), (e, f, g, h)


def _words_with(pair: Any) -> Any:
    @device_function
    def words(x):
        """Four floats rounded to 16 bits, each in the low half of a word."""
        zero = f32(0.0)
        return pair(x[0], zero), pair(x[1], zero), pair(x[2], zero), pair(x[3], zero)

    return words


def new_keys_with(pair: Any, layout: Layout) -> Any:
    words, put_key, put_value, values = _words_with(pair), layout.put_key, layout.put_value, layout.tile_bytes
    tiles, cell_first = 2 * values, layout.cell_first

    @device_function
    def tile_at(base, tile, key):
        """Where the tile of a key lies, if that of number `tile` is at `base`; the ring parts of a block's warps are neighbours."""
        return u32(base + u32(i32((key >> i32(4)) - tile) * i32(tiles)))

    @device_function
    def new_keys(
        base, k_cache, v_cache, qkv, k_gain, table, slot_mapping, width, token, key_at, before, tile, begin, end, step, kv_head,
        stores, eps,
    ):  # fmt: skip
        """Keys begin, begin + step, .. below end, and their values: to their tiles, where that of number `tile` is at `base`, and
        with `stores` to the cache. By a whole warp.

        key_at: of the key head within a row of qkv. slot_mapping None: nothing is stored. One at a time, of few: what is long takes
        its time even where it is not run.
        """
        head_dim = i32(k_cache.shape[3])
        gains = gains_of(k_gain, head_dim)
        value_at = i32(key_at + i32(k_cache.shape[2]) * head_dim)
        key, entry = i32(begin), i32(-1)
        if cell_first and slot_mapping is not None and stores:
            entry = early_int(slot_mapping, i64(i32(token + key - before)))
        while key < end:
            start = i32((token + key - before) * width)
            if not cell_first:
                entry = i32(-1)
                if slot_mapping is not None and stores:
                    entry = early_int(slot_mapping, i64(i32(token + key - before)))
            x, v = head_of(qkv, i32(start + key_at), head_dim), head_of(qkv, i32(start + value_at), head_dim)
            angles = head_of(table, i32(key * head_dim), head_dim)
            k, v = kept_heads(turned(x, scale_of(x, k_gain, head_dim, eps), k_gain, gains, angles), v, v_cache)
            k, w = words(k), words(v)
            at, row = tile_at(base, tile, key), i32(key & i32(_KEYS - 1))
            put_key(at, row, head_dim, k)
            put_value(u32(at + u32(values)), row, head_dim, w)
            if entry >= i32(0):
                store_head(k_cache, entry, kv_head, head_dim, k)
                store_head(v_cache, entry, kv_head, head_dim, w)
            key = i32(key + step)
            if cell_first and slot_mapping is not None and stores and key < end:
                entry = early_int(slot_mapping, i64(i32(token + key - before)))

    return new_keys


@device_function
def query_of(qkv, table, width, token, before, last_key, group, share, first_head, pair, head_dim):
    """A lane's elements of the query of a pair of the request, and its angles."""
    row = quotient(pair, share)
    head = i32(first_head + pair - row * group)
    x = head_of(qkv, i32((token + row) * width + head * head_dim), head_dim)
    return x, head_of(table, i32(min(i32(before + row), last_key) * head_dim), head_dim)


def queries_with(pair: Any, layout: Layout) -> Any:
    words, put_key = _words_with(pair), layout.put_key

    @device_function
    def queries(
        base, qkv, gain, table, width, token, before, last_key, group, share, first_head, first_pair, pairs, head_dim, eps, who,
        among,
    ):  # fmt: skip
        """Pairs who, who + among, .. rotated, to rows of the tile at `base`. By a whole warp; two at a time."""
        gains, last = gains_of(gain, head_dim), i32(first_pair + pairs - i32(1))
        p = i32(who)
        while p < pairs:
            other = i32(p + among)
            here, there = i32(first_pair + p), min(i32(first_pair + other), last)
            x, t = query_of(qkv, table, width, token, before, last_key, group, share, first_head, here, head_dim)
            y, u = query_of(qkv, table, width, token, before, last_key, group, share, first_head, there, head_dim)
            c, d = scale_of(x, gain, head_dim, eps), scale_of(y, gain, head_dim, eps)
            put_key(base, p, head_dim, words(turned(x, c, gain, gains, t)))
            if other < pairs:
                put_key(base, other, head_dim, words(turned(y, d, gain, gains, u)))
            p = i32(other + among)

    return queries
