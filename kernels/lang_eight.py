"""Eight neighbours of a row at once: one 16-byte access of a GPU in 16-bit types, two in float32; single elements elsewhere.

Rows are contiguous and as long as their axis, and on a GPU they begin at 16 bytes: a multiple of 8 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.lang import SIMULATED
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import primitive

if not SIMULATED:
    import kernels.lang_eight_gpu as eight_gpu


def _read(array: Any, *place: Any) -> Callable[..., Any] | None:
    return eight_gpu.READ.get(str(array.dtype))


def _read_flat(vector: Any, *place: Any) -> Callable[..., Any] | None:
    return eight_gpu.READ_FLAT.get(str(vector.dtype))


def _write(array: Any, *rest: Any) -> Callable[..., Any] | None:
    return eight_gpu.WRITE.get(str(array.dtype))


@primitive(_read)
def read_eight(array, row, column):
    """Columns column .. column + 7 of a row of [T, N], as eight float32. row, column: int32."""
    return (
        widen(array[row, column]),
        widen(array[row, column + 1]),
        widen(array[row, column + 2]),
        widen(array[row, column + 3]),
        widen(array[row, column + 4]),
        widen(array[row, column + 5]),
        widen(array[row, column + 6]),
        widen(array[row, column + 7]),
    )


@primitive(_read_flat)
def read_eight_flat(vector, column):
    """As `read_eight`, of [N]."""
    return (
        widen(vector[column]),
        widen(vector[column + 1]),
        widen(vector[column + 2]),
        widen(vector[column + 3]),
        widen(vector[column + 4]),
        widen(vector[column + 5]),
        widen(vector[column + 6]),
        widen(vector[column + 7]),
    )


@primitive(_write)
def write_eight(array, row, column, values):
    """Eight float32 to columns column .. column + 7 of a row of [T, N], rounded to its type. row, column: int32."""
    array[row, column] = narrow(values[0], array)
    array[row, column + 1] = narrow(values[1], array)
    array[row, column + 2] = narrow(values[2], array)
    array[row, column + 3] = narrow(values[3], array)
    array[row, column + 4] = narrow(values[4], array)
    array[row, column + 5] = narrow(values[5], array)
    array[row, column + 6] = narrow(values[6], array)
    array[row, column + 7] = narrow(values[7], array)
