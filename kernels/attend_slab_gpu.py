"""A warp's sixteen pairs against 64 keys on the tensor cores: scores, shares, and the sums of values, all in registers.

An accumulator is eight tuples of four: element (g, 8 j + 2 q), the next, and the same two of row g + 8, for lane 4 g + q and
j = 0 .. 7. What is an accumulator of scores is the left operand of the next product (FlashAttention 2, Dao, 2023).
"""

from __future__ import annotations

from typing import Any

from kernels.lang import NEG_INF, device_function, f32, i32, u32
from kernels.lang_element import exp2
from kernels.lang_matrix import larger, load4, read_matrices, read_transposed

TILE_KEYS = 64
"""Keys of a tile: the columns of an accumulator."""

SLAB = 64
"""Dims of a head that one accumulator sums up."""


@device_function
def no_sums():
    n = (f32(0.0), f32(0.0), f32(0.0), f32(0.0))
    return n, n, n, n, n, n, n, n


@device_function
def load_step(query, near, far):
    """Sixteen dims of the queries of a lane's two rows, the left operand of a product."""
    ahead = near + 8
    return load4(query, near), load4(query, far), load4(query, ahead), load4(query, far + 8)


@device_function
def load_slab(query, near, far):
    """64 dims, from elements near and far of the array on."""
    return (
        load_step(query, near, far),
        load_step(query, near + 16, far + 16),
        load_step(query, near + 32, far + 32),
        load_step(query, near + 48, far + 48),
    )


@device_function
def _mask(s, key, near_seen, far_seen):
    after = i32(key + i32(1))
    return (
        s[0] if key < near_seen else NEG_INF,
        s[1] if after < near_seen else NEG_INF,
        s[2] if key < far_seen else NEG_INF,
        s[3] if after < far_seen else NEG_INF,
    )


@device_function
def mask_scores(s, key, near_seen, far_seen):
    """-inf for the keys that a row does not see. key: the first of this lane."""
    return (
        _mask(s[0], key, near_seen, far_seen),
        _mask(s[1], i32(key + i32(8)), near_seen, far_seen),
        _mask(s[2], i32(key + i32(16)), near_seen, far_seen),
        _mask(s[3], i32(key + i32(24)), near_seen, far_seen),
        _mask(s[4], i32(key + i32(32)), near_seen, far_seen),
        _mask(s[5], i32(key + i32(40)), near_seen, far_seen),
        _mask(s[6], i32(key + i32(48)), near_seen, far_seen),
        _mask(s[7], i32(key + i32(56)), near_seen, far_seen),
    )


@device_function
def largest_of(s, a, b):
    """The largest of this lane's elements of one row: a, b = 0, 1 or 2, 3."""
    c, d = larger(larger(s[0][a], s[0][b]), larger(s[1][a], s[1][b])), larger(larger(s[2][a], s[2][b]), larger(s[3][a], s[3][b]))
    e, f = larger(larger(s[4][a], s[4][b]), larger(s[5][a], s[5][b])), larger(larger(s[6][a], s[6][b]), larger(s[7][a], s[7][b]))
    return larger(larger(c, d), larger(e, f))


@device_function
def total_of(s, a, b):
    """The sum of them."""
    c, d = (s[0][a] + s[0][b]) + (s[1][a] + s[1][b]), (s[2][a] + s[2][b]) + (s[3][a] + s[3][b])
    e, f = (s[4][a] + s[4][b]) + (s[5][a] + s[5][b]), (s[6][a] + s[6][b]) + (s[7][a] + s[7][b])
    return (c + d) + (e + f)


@device_function
def _share(s, scale, near, far):
    return exp2(s[0] * scale - near), exp2(s[1] * scale - near), exp2(s[2] * scale - far), exp2(s[3] * scale - far)


@device_function
def shares_of(s, scale, near, far):
    """2 ** (score * scale - shift), with the shifts of the two rows."""
    return (
        _share(s[0], scale, near, far),
        _share(s[1], scale, near, far),
        _share(s[2], scale, near, far),
        _share(s[3], scale, near, far),
        _share(s[4], scale, near, far),
        _share(s[5], scale, near, far),
        _share(s[6], scale, near, far),
        _share(s[7], scale, near, far),
    )


@device_function
def scaled(s, near, far):
    return s[0] * near, s[1] * near, s[2] * far, s[3] * far


@device_function
def scale_sums(s, near, far):
    """An accumulator whose rows are multiplied by near and far."""
    return (
        scaled(s[0], near, far),
        scaled(s[1], near, far),
        scaled(s[2], near, far),
        scaled(s[3], near, far),
        scaled(s[4], near, far),
        scaled(s[5], near, far),
        scaled(s[6], near, far),
        scaled(s[7], near, far),
    )


def slabs_with(mma: Any, pair: Any, head_dim: int) -> Any:
    """(add_scores, left_operands, add_values) for a type, and rows of shared memory of head_dim elements, 16 bytes of which are in
    the place of their number xor the row's number modulo 8."""
    rows_16 = 16 * 2 * head_dim

    @device_function
    def add_step(s, a, b, c, d, e):
        return (
            mma(s[0], a[0], a[1], a[2], a[3], b[0], b[1]),
            mma(s[1], a[0], a[1], a[2], a[3], b[2], b[3]),
            mma(s[2], a[0], a[1], a[2], a[3], c[0], c[1]),
            mma(s[3], a[0], a[1], a[2], a[3], c[2], c[3]),
            mma(s[4], a[0], a[1], a[2], a[3], d[0], d[1]),
            mma(s[5], a[0], a[1], a[2], a[3], d[2], d[3]),
            mma(s[6], a[0], a[1], a[2], a[3], e[0], e[1]),
            mma(s[7], a[0], a[1], a[2], a[3], e[2], e[3]),
        )

    @device_function
    def add_dims(s, a, at):
        """Sixteen more dims of the scores of 64 keys. at: shared address of this lane's row of keys 0 .. 15."""
        b, c = read_matrices(at), read_matrices(u32(at + u32(rows_16)))
        d, e = read_matrices(u32(at + u32(2 * rows_16))), read_matrices(u32(at + u32(3 * rows_16)))
        return add_step(s, a, b, c, d, e)

    @device_function
    def add_scores(s, q, row, turn):
        """64 more dims. row: address of the lane's row at the first of these dims; turn: 16 * (its first place there)."""
        s = add_dims(s, q[0], u32(row + turn))
        s = add_dims(s, q[1], u32(row + (turn ^ u32(32))))
        s = add_dims(s, q[2], u32(row + (turn ^ u32(64))))
        return add_dims(s, q[3], u32(row + (turn ^ u32(96))))

    @device_function
    def operand(s, t):
        return pair(s[0], s[1]), pair(s[2], s[3]), pair(t[0], t[1]), pair(t[2], t[3])

    @device_function
    def left_operands(s):
        """Shares of 64 keys, rounded, as the left operands of four products of 16 keys."""
        return operand(s[0], s[1]), operand(s[2], s[3]), operand(s[4], s[5]), operand(s[6], s[7])

    @device_function
    def add_keys(o, p, row, turn):
        """Sixteen more keys of the sums of 64 dims."""
        b, c = read_transposed(u32(row + turn)), read_transposed(u32(row + (turn ^ u32(32))))
        d, e = read_transposed(u32(row + (turn ^ u32(64)))), read_transposed(u32(row + (turn ^ u32(96))))
        return add_step(o, p, b, c, d, e)

    @device_function
    def add_values(o, p, row, turn):
        """64 more keys. row, turn: as in `add_scores`, of the values."""
        o = add_keys(o, p[0], row, turn)
        o = add_keys(o, p[1], u32(row + u32(rows_16)), turn)
        o = add_keys(o, p[2], u32(row + u32(2 * rows_16)), turn)
        return add_keys(o, p[3], u32(row + u32(3 * rows_16)), turn)

    return add_scores, left_operands, add_values
