"""The GPU's forms of kernels/lang_eight.py. float16 is written one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import device_function, i64
from kernels.lang_element import put16, words_of
from kernels.lang_mma import pair_bfloat16
from kernels.lang_vector import EIGHT


@device_function
def place_of(array, row, column):
    return i64(row) * i64(array.shape[1]) + i64(column)


def _reads(eight: Any) -> Callable[..., Any]:
    def read(array, row, column):
        return eight(array, place_of(array, row, column))

    return read


def _reads_flat(eight: Any) -> Callable[..., Any]:
    def read(vector, column):
        return eight(vector, i64(column))

    return read


def write_float32(array, row, column, values):
    at = place_of(array, row, column)
    put16(array, at, words_of((values[0], values[1], values[2], values[3])))
    put16(array, at + i64(4), words_of((values[4], values[5], values[6], values[7])))


def write_bfloat16(array, row, column, values):
    a, b = pair_bfloat16(values[0], values[1]), pair_bfloat16(values[2], values[3])
    c, d = pair_bfloat16(values[4], values[5]), pair_bfloat16(values[6], values[7])
    put16(array, place_of(array, row, column), (a, b, c, d))


READ = {dtype: _reads(eight) for dtype, eight in EIGHT.items()}
READ_FLAT = {dtype: _reads_flat(eight) for dtype, eight in EIGHT.items()}
WRITE = {"float32": write_float32, "uint16": write_bfloat16}
