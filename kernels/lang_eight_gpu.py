"""The GPU's forms of kernels/lang_eight.py. float16 has none: its elements are moved one by one."""

from __future__ import annotations

from kernels.lang import device_function, i64, u32
from kernels.lang_element import put16, words_of
from kernels.lang_mma import floats_of, load16, pair_bfloat16

_HIGH = u32(0xFFFF0000)


@device_function
def floats_at(array, offset):
    """Eight float32 from element `offset` on."""
    a, b = floats_of(load16(array, offset)), floats_of(load16(array, offset + i64(4)))
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@device_function
def bfloat16_at(array, offset):
    """Eight bfloat16 from element `offset` on, as float32."""
    w = load16(array, offset)
    a = floats_of((u32(w[0] << u32(16)), u32(w[0] & _HIGH), u32(w[1] << u32(16)), u32(w[1] & _HIGH)))
    b = floats_of((u32(w[2] << u32(16)), u32(w[2] & _HIGH), u32(w[3] << u32(16)), u32(w[3] & _HIGH)))
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@device_function
def place_of(array, row, column):
    return i64(row) * i64(array.shape[1]) + i64(column)


def read_float32(array, row, column):
    return floats_at(array, place_of(array, row, column))


def read_bfloat16(array, row, column):
    return bfloat16_at(array, place_of(array, row, column))


def read_float32_flat(vector, column):
    return floats_at(vector, i64(column))


def read_bfloat16_flat(vector, column):
    return bfloat16_at(vector, i64(column))


def write_float32(array, row, column, values):
    at = place_of(array, row, column)
    put16(array, at, words_of((values[0], values[1], values[2], values[3])))
    put16(array, at + i64(4), words_of((values[4], values[5], values[6], values[7])))


def write_bfloat16(array, row, column, values):
    a, b = pair_bfloat16(values[0], values[1]), pair_bfloat16(values[2], values[3])
    c, d = pair_bfloat16(values[4], values[5]), pair_bfloat16(values[6], values[7])
    put16(array, place_of(array, row, column), (a, b, c, d))


READ = {"float32": read_float32, "uint16": read_bfloat16}
READ_FLAT = {"float32": read_float32_flat, "uint16": read_bfloat16_flat}
WRITE = {"float32": write_float32, "uint16": write_bfloat16}
