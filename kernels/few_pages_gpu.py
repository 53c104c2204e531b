"""Keys and values of a step's attention on their way from the paged cache to shared memory (kernels/few_step_gpu.py).

A tile of sixteen rows is laid out as the operands of the tensor cores want it, 16 bytes of a lane at lane * 16. For keys lane
4 g + q has dims 8 q .. 8 q + 7 of rows g and g + 8, for each 32 dims; for values dims 8 g .. 8 g + 7 of rows 2 q, 2 q + 1, 2 q + 8
and 2 q + 9, for each 64 dims. A lane copies to slots of its own, so that a warp needs no barrier for them.
"""

from __future__ import annotations

from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import early_int, inverse
from kernels.lang_mma import commit_copies, copy16
from kernels.lang_warp import lane

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
def copy_two(to, cache, offset, size, step):
    """32 dims and 32 more, `step` bytes further on."""
    copy16(to, cache, offset, size)
    copy16(u32(to + step), cache, offset + i64(32), size)


@device_function
def fetch_tile_keys(to, k_cache, block_tables, table_row, kv_head, tile, entry, limit, keys, share):
    """Sixteen keys under way to a lane's slots `to`, zeros from key `keys` on; slots of keys limit .. keys are left alone."""
    block_size, head_dim = i32(k_cache.shape[1]), i32(k_cache.shape[3])
    row, column = i32(lane() >> i32(2)), i64(i32((lane() & i32(3)) * i32(8)))
    far_row, count, behind = i32(row + i32(8)), i32(limit - tile * i32(_KEYS)), i32(keys - tile * i32(_KEYS))
    start, stride = cache_offset(k_cache, entry, kv_head) + column, i32(i32(k_cache.shape[2]) * head_dim)
    near, far = start + row_offset(row, count, stride), start + row_offset(far_row, count, stride)
    if i32(block_size & i32(_KEYS - 1)) != i32(0):
        near = loose_offset(k_cache, block_tables, table_row, kv_head, tile, row, limit, share) + column
        far = loose_offset(k_cache, block_tables, table_row, kv_head, tile, far_row, limit, share) + column
    size, far_size, half = copy_size(row < count), copy_size(far_row < count), u32(head_dim * i32(16))
    if is_fetched(row, count, behind):
        copy_two(to, k_cache, near, size, u32(512))
        if head_dim > i32(64):
            copy_two(u32(to + u32(1024)), k_cache, near + i64(64), size, u32(512))
    if is_fetched(far_row, count, behind):
        copy_two(u32(to + half), k_cache, far, far_size, u32(512))
        if head_dim > i32(64):
            copy_two(u32(to + half + u32(1024)), k_cache, far + i64(64), far_size, u32(512))
    commit_copies()


@device_function
def fetch_value(to, v_cache, offset, row, count, behind, head_dim):
    """A lane's dims of one value."""
    if is_fetched(row, count, behind):
        size = copy_size(row < count)
        copy16(to, v_cache, offset, size)
        if head_dim > i32(64):
            copy16(u32(to + u32(2048)), v_cache, offset + i64(64), size)


@device_function
def fetch_tile_values(to, v_cache, block_tables, table_row, kv_head, tile, entry, limit, keys, share):
    """The same for the values."""
    block_size, head_dim = i32(v_cache.shape[1]), i32(v_cache.shape[3])
    row, column = i32((lane() & i32(3)) * i32(2)), i64(i32((lane() >> i32(2)) * i32(8)))
    second, third, fourth = i32(row + i32(1)), i32(row + i32(8)), i32(row + i32(9))
    count, behind = i32(limit - tile * i32(_KEYS)), i32(keys - tile * i32(_KEYS))
    start, stride = cache_offset(v_cache, entry, kv_head) + column, i32(i32(v_cache.shape[2]) * head_dim)
    a, b = start + row_offset(row, count, stride), start + row_offset(second, count, stride)
    c, d = start + row_offset(third, count, stride), start + row_offset(fourth, count, stride)
    if i32(block_size & i32(_KEYS - 1)) != i32(0):
        a = loose_offset(v_cache, block_tables, table_row, kv_head, tile, row, limit, share) + column
        b = loose_offset(v_cache, block_tables, table_row, kv_head, tile, second, limit, share) + column
        c = loose_offset(v_cache, block_tables, table_row, kv_head, tile, third, limit, share) + column
        d = loose_offset(v_cache, block_tables, table_row, kv_head, tile, fourth, limit, share) + column
    fetch_value(to, v_cache, a, row, count, behind, head_dim)
    fetch_value(u32(to + u32(512)), v_cache, b, second, count, behind, head_dim)
    fetch_value(u32(to + u32(1024)), v_cache, c, third, count, behind, head_dim)
    fetch_value(u32(to + u32(1536)), v_cache, d, fourth, count, behind, head_dim)
    commit_copies()


@device_function
def loose_offset(cache, block_tables, table_row, kv_head, tile, row, limit, share):
    """Offset of one key of a tile whose keys lie in several pages."""
    block_size = i32(cache.shape[1])
    key = max(min(i32(tile * i32(_KEYS) + row), i32(limit - i32(1))), i32(0))
    page = quotient(key, share)
    block = max(early_int(block_tables, i64(i32(table_row + page))), i32(0))
    return cache_offset(cache, i32(block * block_size + key - page * block_size), kv_head)
