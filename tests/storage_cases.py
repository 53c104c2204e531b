"""Arrays of each storage type, from float32 and back, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

STORAGES = ("float32", "float16", "bfloat16")

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Two units in the last place of each, about."""

LIMIT = {"float32": float("inf"), "float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The smallest number that each rounds to infinity: half a unit above its largest."""


def dtype_of(storage: str) -> np.dtype[Any]:
    """What an array of this storage type is in NumPy: bfloat16 is its bits."""
    return np.dtype(np.uint16 if storage == "bfloat16" else storage)


def stored(values: npt.NDArray[np.float32], storage: str) -> npt.NDArray[Any]:
    """float32 -> storage, rounded to nearest even."""
    if storage != "bfloat16":
        return values.astype(storage)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Storage -> float32, exact. uint16 is bfloat16."""
    if array.dtype != np.uint16:
        return array.astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32)
