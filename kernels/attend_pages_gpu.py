"""Keys and values of a step's attention on their way from the paged cache to shared memory (kernels/attend_step_gpu.py).

Where the rows of a tile lie there is the layout's business: kernels/attend_matrix_gpu.py, kernels/attend_lanes_gpu.py.
"""

from __future__ import annotations

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import early_int, inverse

TILE_KEYS = 16

_KEYS = TILE_KEYS


@device_function
def quotient(a, share):
    """a // b of non-negative int32 below 2 ** 20, from 1 / b."""
    return i32((f32(a) + f32(0.5)) * share)


@device_function
def inverse_of(b):
    """1 / b of a positive int32, a unit in the last place off at most."""
    return inverse(f32(b))


@device_function
def tile_entry(block_tables, table_row, tile, block_size, share):
    """Entry of the cache where the page of a tile has its first key; meaningless where pages are no multiples of tiles."""
    first = i32(tile * i32(_KEYS))
    page = quotient(first, share)
    block = early_int(block_tables, i64(i32(table_row + min(page, i32(block_tables.shape[1] - 1)))))
    return i32(max(block, i32(0)) * block_size + first - page * block_size)


@device_function
def cache_offset(cache, entry, kv_head):
    """Of an entry's elements for a kv head."""
    return (i64(entry) * i64(i32(cache.shape[2])) + i64(kv_head)) * i64(i32(cache.shape[3]))


@device_function
def row_offset(row, count, stride):
    """Of a row of a tile of which `count` are there: nothing is read of the others, but every address is one of the cache."""
    return i64(i32(min(row, max(i32(count - i32(1)), i32(0))) * stride))


@device_function
def copy_size(valid):
    """Bytes of a copy, 0 for zeros instead."""
    return u32(16) if valid else u32(0)


@device_function
def is_fetched(row, count, behind):
    """Is a row of a tile copied: cells of the cache, and zeros behind the last key? Rows between are new, and stored by hand."""
    return row < count or row >= behind


@device_function
def loose_offset(cache, block_tables, table_row, kv_head, tile, row, limit, share):
    """Offset of one key of a tile whose keys lie in several pages."""
    block_size = i32(cache.shape[1])
    key = max(min(i32(tile * i32(_KEYS) + row), i32(limit - i32(1))), i32(0))
    page = quotient(key, share)
    block = max(early_int(block_tables, i64(i32(table_row + page))), i32(0))
    return cache_offset(cache, i32(block * block_size + key - page * block_size), kv_head)
