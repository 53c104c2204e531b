"""Tiles of a step's attention as rows 16 bytes apart, so that the tensor cores' matrices, eight rows of 16 bytes below each other,
meet all banks; sums are rows a pair, 32 bytes apart, so that lanes with those of eight pairs do, and those that read one's dims."""

from __future__ import annotations

from typing import Any

from kernels.attend_layout import Layout
from kernels.attend_pages_gpu import TILE_KEYS, cache_offset, copy_size, is_fetched, loose_offset, row_offset
from kernels.lang import device_function, f32, i32, i64, u32
from kernels.lang_element import write2, write8
from kernels.lang_matrix import read_matrices, read_transposed
from kernels.lang_mma import commit_copies, copy16
from kernels.lang_warp import lane, warp_barrier

TILE_BYTES = 16 * (128 * 2 + 16)

_KEYS, _VALUES = TILE_KEYS, TILE_BYTES


@device_function
def row_bytes(head_dim):
    """From a row of a tile to the next."""
    return i32(head_dim * i32(2) + i32(16))


@device_function
def copy_four(to, cache, offset, step, apart):
    """A lane's chunks of four rows, `step` elements and `apart` bytes apart."""
    whole = u32(16)
    copy16(to, cache, offset, whole)
    copy16(u32(to + apart), cache, offset + step, whole)
    copy16(u32(to + u32(2) * apart), cache, offset + i64(2) * step, whole)
    copy16(u32(to + u32(3) * apart), cache, offset + i64(3) * step, whole)


@device_function
def fetch_tile(to, cache, block_tables, table_row, kv_head, tile, entry, limit, keys, share):
    """Sixteen rows under way to the tile at `to`, zeros from key `keys` on; rows of keys limit .. keys are left alone.

    By a whole warp. A lane has one chunk of every second row, of 64 dims of every fourth.
    """
    block_size, head_dim = i32(cache.shape[1]), i32(cache.shape[3])
    shift = i32(3)
    if head_dim > i32(64):
        shift = i32(4)
    row, chunk, step = i32(lane() >> shift), i32(lane() & i32((i32(1) << shift) - i32(1))), i32(i32(32) >> shift)
    count, stride = i32(limit - tile * i32(_KEYS)), i32(i32(cache.shape[2]) * head_dim)
    start, paged = cache_offset(cache, entry, kv_head) + i64(i32(chunk * i32(8))), i32(block_size & i32(_KEYS - 1)) == i32(0)
    if count >= i32(_KEYS) and paged:
        at, first = u32(to + u32(row * row_bytes(head_dim) + chunk * i32(16))), start + i64(i32(row * stride))
        apart, between = i64(i32(step * stride)), u32(step * row_bytes(head_dim))
        copy_four(at, cache, first, apart, between)
        if head_dim > i32(64):
            copy_four(u32(at + u32(4) * between), cache, first + i64(4) * apart, apart, between)
    else:
        behind = i32(keys - tile * i32(_KEYS))
        while row < i32(_KEYS):
            if is_fetched(row, count, behind):
                offset = start + row_offset(row, count, stride)
                if not paged:
                    offset = loose_offset(cache, block_tables, table_row, kv_head, tile, row, limit, share) + i64(chunk * i32(8))
                copy16(u32(to + u32(row * row_bytes(head_dim) + chunk * i32(16))), cache, offset, copy_size(row < count))
            row = i32(row + step)
    commit_copies()


@device_function
def put_row(base, row, head_dim, x):
    """A head, its words, into row `row` of a tile of queries, keys or values."""
    at = u32(base + u32(row * row_bytes(head_dim) + lane() * i32(2)))
    write2(at, x[0])
    write2(u32(at + u32(head_dim)), x[1])
    if head_dim > i32(64):
        write2(u32(at + u32(64)), x[2])
        write2(u32(at + u32(192)), x[3])


@device_function
def places(query_base, base, head_dim):
    low, eighth, step = i32(lane() & i32(7)), i32(lane() >> i32(3)), row_bytes(head_dim)
    key_at = u32(base + u32((low + ((eighth >> i32(1)) << i32(3))) * step + (eighth & i32(1)) * i32(16)))
    row_at = u32((low + ((eighth & i32(1)) << i32(3))) * step + (eighth >> i32(1)) * i32(16))
    return u32(query_base + row_at), key_at, u32(base + u32(_VALUES) + row_at)


@device_function
def nothing():
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0)


def _scores(mma: Any) -> Any:
    @device_function
    def scores_of(s0, s1, queries, keys):
        """16 more dims of the scores of keys 0 .. 7 and 8 .. 15."""
        q, k = read_matrices(queries), read_matrices(keys)
        return mma(s0, q[0], q[1], q[2], q[3], k[0], k[1]), mma(s1, q[0], q[1], q[2], q[3], k[2], k[3])

    @device_function
    def dots(s0, s1, s2, s3, queries, keys):
        """64 more dims, in two sums each."""
        s0, s1 = scores_of(s0, s1, queries, keys)
        s2, s3 = scores_of(s2, s3, u32(queries + u32(32)), u32(keys + u32(32)))
        s0, s1 = scores_of(s0, s1, u32(queries + u32(64)), u32(keys + u32(64)))
        s2, s3 = scores_of(s2, s3, u32(queries + u32(96)), u32(keys + u32(96)))
        return s0, s1, s2, s3

    @device_function
    def scores(queries, keys, head_dim):
        s0, s1, s2, s3 = dots(nothing(), nothing(), nothing(), nothing(), queries, keys)
        if head_dim > i32(64):
            s0, s1, s2, s3 = dots(s0, s1, s2, s3, u32(queries + u32(128)), u32(keys + u32(128)))
        return s0, s1, s2, s3

    return scores


def _weigh(mma: Any) -> Any:
    @device_function
    def product(a, b, p, values):
        """Adds the values' shares in 8 dims to `a` and in the next 8 to `b`."""
        v = read_transposed(values)
        return mma(a, p[0], p[1], p[2], p[3], v[0], v[1]), mma(b, p[0], p[1], p[2], p[3], v[2], v[3])

    @device_function
    def weigh(o, p, values, half):
        at = u32(values + u32(half * i32(128)))
        a, b = product(o[0], o[1], p, at)
        c, d = product(o[2], o[3], p, u32(at + u32(32)))
        e, f = product(o[4], o[5], p, u32(at + u32(64)))
        g, h = product(o[6], o[7], p, u32(at + u32(96)))
        return a, b, c, d, e, f, g, h

    return weigh


@device_function
def keep_eight(near, far, with_far, a, b, c, d, e, f, g, h):
    """The sums of 64 dims: a lane has two of each eight, of rows g and g + 8, whose first ones go to `near` and `far`."""
    write8(near, a[0], a[1])
    write8(u32(near + u32(32)), b[0], b[1])
    write8(u32(near + u32(64)), c[0], c[1])
    write8(u32(near + u32(96)), d[0], d[1])
    write8(u32(near + u32(128)), e[0], e[1])
    write8(u32(near + u32(160)), f[0], f[1])
    write8(u32(near + u32(192)), g[0], g[1])
    write8(u32(near + u32(224)), h[0], h[1])
    if with_far:
        write8(far, a[2], a[3])
        write8(u32(far + u32(32)), b[2], b[3])
        write8(u32(far + u32(64)), c[2], c[3])
        write8(u32(far + u32(96)), d[2], d[3])
        write8(u32(far + u32(128)), e[2], e[3])
        write8(u32(far + u32(160)), f[2], f[3])
        write8(u32(far + u32(192)), g[2], g[3])
        write8(u32(far + u32(224)), h[2], h[3])


@device_function
def sum_byte(head_dim, p, d):
    """Where a warp's part of the ring holds the sums of pair p in dims d .. d + 3."""
    return i32(p * (head_dim * i32(4) + i32(32)) + d * i32(4))


@device_function
def keep(base, head_dim, with_far, o, u):
    """A warp's sums: of 64 dims `o`, and `u` of the 64 behind them where heads are that long."""
    near = u32(base + u32(sum_byte(head_dim, i32(lane() >> i32(2)), i32((lane() & i32(3)) * i32(2)))))
    far = u32(near + u32(head_dim * i32(32) + i32(256)))
    keep_eight(near, far, with_far, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
    if head_dim > i32(64):
        keep_eight(u32(near + u32(256)), u32(far + u32(256)), with_far, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7])


@device_function
def unguarded():
    """`meet` stands behind every read."""


MATRIX = Layout(
    tile_bytes=TILE_BYTES,
    places=places,
    meet=warp_barrier,
    guard=unguarded,
    fetch_keys=fetch_tile,
    fetch_values=fetch_tile,
    put_key=put_row,
    put_value=put_row,
    cell_first=True,
    scores=_scores,
    weigh=_weigh,
    keep=keep,
    sum_byte=sum_byte,
)
"""Of steps of many tiles (kernels/attend_step.py) and of draft blocks."""
