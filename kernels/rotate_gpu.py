"""The GPU's form of kernels/rotate_many.py over caches in 16 bits and heads of 64 or 128 dims: sixteen dims of a head a lane.

A head is four lanes or eight; a lane has eight neighbours of its first half and the eight that turn against them, so that every
access is of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.behind_product import added, multiplied, sum_of_eight
from kernels.lang import cuda, device_function, f32, i32, i64, u32
from kernels.lang_eight import read_eight, read_eight_flat
from kernels.lang_element import element, put16
from kernels.lang_fast import inverse_root
from kernels.lang_mma import pair_bfloat16, pair_float16
from kernels.lang_warp import octet_sum, quad_sum
from kernels.rotate import kept


@device_function
def times(v, scale):
    return v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale, v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale


@device_function
def less(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4], a[5] - b[5], a[6] - b[6], a[7] - b[7]


@device_function
def kept_keys(k, v, cache):
    """Eight dims of a key as kernels/rotate.py keeps them, by those of its value."""
    a, b, c, d = kept(k[0], v[0], cache)[0], kept(k[1], v[1], cache)[0], kept(k[2], v[2], cache)[0], kept(k[3], v[3], cache)[0]
    e, f, g, h = kept(k[4], v[4], cache)[0], kept(k[5], v[5], cache)[0], kept(k[6], v[6], cache)[0], kept(k[7], v[7], cache)[0]
    return a, b, c, d, e, f, g, h


@device_function
def kept_values(v, cache):
    """Eight dims of a value, as kernels/rotate.py keeps them."""
    a, b, c, d = kept(v[0], v[0], cache)[1], kept(v[1], v[1], cache)[1], kept(v[2], v[2], cache)[1], kept(v[3], v[3], cache)[1]
    e, f, g, h = kept(v[4], v[4], cache)[1], kept(v[5], v[5], cache)[1], kept(v[6], v[6], cache)[1], kept(v[7], v[7], cache)[1]
    return a, b, c, d, e, f, g, h


def _rotate(pair: Any) -> Callable[..., Any]:
    @device_function
    def put_eight(array, at, v):
        put16(array, at, (pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7])))

    def rotate_form(query, k_cache, v_cache, qkv, q_gain, k_gain, table, positions, slot_mapping, num_heads, eps, num_tokens):
        kv_heads, head_dim = i32(k_cache.shape[2]), i32(k_cache.shape[3])
        heads, half, live = num_heads + i32(2) * kv_heads, i32(head_dim >> i32(1)), num_tokens[0]
        lanes = i32(head_dim >> i32(4))
        block = i32(cuda.blockIdx.x + cuda.blockIdx.y * cuda.gridDim.x)
        thread = i32(block * i32(cuda.blockDim.x) + cuda.threadIdx.x)
        threads = i32(cuda.gridDim.x * cuda.gridDim.y * cuda.blockDim.x)
        column = i32(thread & i32(lanes - i32(1))) * i32(8)
        unit = i32(u32(thread) // u32(lanes))
        first_of_warp = i32(u32(i32(thread & i32(-32))) // u32(lanes))
        while first_of_warp < live * heads:  # whole warps: their lanes add up together
            row = i32(u32(unit) // u32(heads))
            there = row < live
            row = min(row, live - i32(1))
            head = i32(unit - i32(u32(unit) // u32(heads)) * heads)
            start = i32(head * head_dim + column)
            near, far = read_eight(qkv, row, start), read_eight(qkv, row, i32(start + half))
            position, entry = element(positions, i64(row)), element(slot_mapping, i64(row))
            if q_gain is not None:
                squares = sum_of_eight(added(multiplied(near, near), multiplied(far, far)))
                total = quad_sum(squares)
                if lanes > i32(4):
                    total = octet_sum(squares)
                scale = inverse_root(total / f32(head_dim) + eps)
                if head < num_heads:
                    near = multiplied(times(near, scale), read_eight_flat(q_gain, column))
                    far = multiplied(times(far, scale), read_eight_flat(q_gain, i32(half + column)))
                elif head < num_heads + kv_heads:
                    near = multiplied(times(near, scale), read_eight_flat(k_gain, column))
                    far = multiplied(times(far, scale), read_eight_flat(k_gain, i32(half + column)))
            if head < num_heads + kv_heads:
                cosine, sine = read_eight(table, position, column), read_eight(table, position, i32(half + column))
                near, far = (
                    less(multiplied(near, cosine), multiplied(far, sine)),
                    added(multiplied(far, cosine), multiplied(near, sine)),
                )
            if there and head < num_heads:
                at = i64(row) * i64(i32(query.shape[1])) + i64(start)
                put_eight(query, at, near)
                put_eight(query, at + i64(half), far)
            elif there and entry >= i32(0):
                kv_head, cell = i32(head - num_heads), i64(entry) * i64(i32(kv_heads * head_dim))
                if kv_head < kv_heads:
                    value = i32(start + kv_heads * head_dim)
                    near = kept_keys(near, read_eight(qkv, row, value), v_cache)
                    far = kept_keys(far, read_eight(qkv, row, i32(value + half)), v_cache)
                    at = cell + i64(i32(kv_head * head_dim + column))
                    put_eight(k_cache, at, near)
                    put_eight(k_cache, at + i64(half), far)
                else:
                    at = cell + i64(i32((kv_head - kv_heads) * head_dim + column))
                    put_eight(v_cache, at, kept_values(near, v_cache))
                    put_eight(v_cache, at + i64(half), kept_values(far, v_cache))
            first_of_warp = i32(first_of_warp + i32(u32(threads) // u32(lanes)))
            unit = i32(unit + i32(u32(threads) // u32(lanes)))

    return rotate_form


def takes(query, k_cache):
    return k_cache.shape[3] == 64 or k_cache.shape[3] == 128


ROTATE = {"uint16": _rotate(pair_bfloat16), "float16": _rotate(pair_float16)}
"""By the type of queries and cache; anything else runs in the common form."""
