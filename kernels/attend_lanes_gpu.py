"""Tiles of a step's attention as the operands of the tensor cores want them, 16 bytes of a lane at lane * 16.

For keys lane 4 g + q has dims 8 q .. 8 q + 7 of rows g and g + 8, for each 32 dims; for values dims 8 g .. 8 g + 7 of rows 2 q,
2 q + 1, 2 q + 8 and 2 q + 9, for each 64 dims. A lane copies to slots of its own, so that a warp needs no barrier for them. Sums
are turned by what a chunk of dims they are, so that a warp that reads the dims of a pair, four a lane, meets all banks.
"""

from __future__ import annotations

from typing import Any

from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import TILE_KEYS, cache_offset, copy_size, is_fetched, loose_offset, row_offset
from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import write2, write16
from kernels.lang_mma import commit_copies, copy16, read16, select_bytes
from kernels.lang_warp import lane, warp_barrier

TILE_BYTES = 16 * 128 * 2

_KEYS, _VALUES = TILE_KEYS, TILE_BYTES


@device_function
def copy_two(to, cache, offset, size, step):
    """32 dims and 32 more, `step` bytes further on."""
    copy16(to, cache, offset, size)
    copy16(u32(to + step), cache, offset + i64(32), size)


@device_function
def fetch_tile_keys(to, k_cache, block_tables, table_row, kv_head, tile, entry, limit, keys, share):
    """Sixteen keys under way to a tile, zeros from key `keys` on; rows of keys limit .. keys are left alone. By a whole warp."""
    to = u32(to + u32(lane() * i32(16)))
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
    to = u32(to + u32(lane() * i32(16)))
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
def places(query_base, base, head_dim):
    mine = u32(lane() * i32(16))
    return u32(query_base + mine), u32(base + mine), u32(base + u32(_VALUES) + mine)


@device_function
def meet():
    """Nobody waits: what a lane reads of a tile it has copied itself."""


@device_function
def nothing():
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@device_function
def four_values(at):
    """A lane's 8 dims of four keys."""
    return read16(at), read16(u32(at + u32(512))), read16(u32(at + u32(1024))), read16(u32(at + u32(1536)))


def _scores(mma: Any) -> Any:
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
    def scores(queries, keys, head_dim):
        half = u32(head_dim * i32(16))
        s0, s1, s2, s3 = dots(nothing(), nothing(), nothing(), nothing(), queries, u32(queries + half), keys, u32(keys + half))
        if head_dim > i32(64):
            more, rest = u32(queries + u32(1024)), u32(keys + u32(1024))
            s0, s1, s2, s3 = dots(s0, s1, s2, s3, more, u32(more + half), rest, u32(rest + half))
        return s0, s1, s2, s3

    return scores


def _weigh(mma: Any) -> Any:
    @device_function
    def product(sums, p, a, b, c, d, selector):
        """Adds the dims that `selector` picks out of one word of each of four keys."""
        return mma(sums, p[0], p[1], p[2], p[3], select_bytes(a, b, selector), select_bytes(c, d, selector))

    @device_function
    def weigh(o, p, values, half):
        even, odd = u32(0x5410), u32(0x7632)
        w, x, y, z = four_values(u32(values + u32(half * i32(2048))))
        a, b = product(o[0], p, w[0], x[0], y[0], z[0], even), product(o[1], p, w[0], x[0], y[0], z[0], odd)
        c, d = product(o[2], p, w[1], x[1], y[1], z[1], even), product(o[3], p, w[1], x[1], y[1], z[1], odd)
        e, f = product(o[4], p, w[2], x[2], y[2], z[2], even), product(o[5], p, w[2], x[2], y[2], z[2], odd)
        g, h = product(o[6], p, w[3], x[3], y[3], z[3], even), product(o[7], p, w[3], x[3], y[3], z[3], odd)
        return a, b, c, d, e, f, g, h

    return weigh


@device_function
def keep_four(base, chunk, a, b, c, d):
    """Four neighbouring dims of a row; rotated by chunk, so that who reads neighbours (`sum_byte`) meets all banks."""
    turned_by = u32((lane() * i32(16) + (chunk & i32(3)) * i32(32)) & i32(511))
    write16(u32(base + u32(chunk * i32(512)) + turned_by), a, b, c, d)


@device_function
def keep_slab(base, near, far, with_far, a, b, c, d, e, f, g, h):
    """The sums of 64 dims: a lane has 16 of them, dims 16 q on, of rows g and g + 8."""
    keep_four(base, near, a[0], b[0], c[0], d[0])
    keep_four(base, i32(near + i32(1)), e[0], f[0], g[0], h[0])
    keep_four(base, i32(near + i32(2)), a[1], b[1], c[1], d[1])
    keep_four(base, i32(near + i32(3)), e[1], f[1], g[1], h[1])
    if with_far:
        keep_four(base, far, a[2], b[2], c[2], d[2])
        keep_four(base, i32(far + i32(1)), e[2], f[2], g[2], h[2])
        keep_four(base, i32(far + i32(2)), a[3], b[3], c[3], d[3])
        keep_four(base, i32(far + i32(3)), e[3], f[3], g[3], h[3])


@device_function
def sum_byte(head_dim, p, d):
    """Where a warp's part of the ring holds the sum of pair p in dim d."""
    chunk = i32(((p >> i32(3)) * (head_dim >> i32(6)) + (d >> i32(6))) * i32(4) + ((d & i32(15)) >> i32(2)))
    spot = i32((p & i32(7)) * i32(64) + ((d & i32(63)) >> i32(4)) * i32(16) + (chunk & i32(3)) * i32(32))
    return i32(chunk * i32(512) + (spot & i32(511)) + (d & i32(3)) * i32(4))


@device_function
def keep(base, head_dim, with_far, o, u):
    """A warp's sums: of 64 dims `o`, and `u` of the 64 behind them where heads are that long."""
    far_chunk = i32(head_dim >> i32(4))
    keep_slab(base, i32(0), far_chunk, with_far, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
    if head_dim > i32(64):
        keep_slab(base, i32(4), i32(far_chunk + i32(4)), with_far, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7])


LANES = Layout(
    tile_bytes=TILE_BYTES,
    places=places,
    meet=meet,
    guard=warp_barrier,
    fetch_keys=fetch_tile_keys,
    fetch_values=fetch_tile_values,
    put_key=put_row,
    put_value=put_value,
    cell_first=False,
    scores=_scores,
    weigh=_weigh,
    keep=keep,
    sum_byte=sum_byte,
)
"""Of few tiles (kernels/attend_few.py)."""
