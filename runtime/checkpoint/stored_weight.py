"""A weight that is still on disk: read when it is wanted, so that no more of a model is in host memory than one of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.checkpoint.weights import STORAGE, ModelWeights, Progress, WeightArray, WeightDtype, build_weights, parts
from runtime.models.spec import ModelSpec

ReadInto = Callable[[Mapping[str, WeightArray], Progress], None]
"""Read tensors by their neutral names into arrays of their shapes; progress counts bytes of the files, of these tensors alone."""


@dataclass(frozen=True)
class StoredWeight:
    """shape, dtype: as of the array that `read` yields anew at each call."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], WeightArray]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def stored_weights(
    spec: ModelSpec, dtype: WeightDtype, read_into: ReadInto, total: int, progress: Progress | None = None
) -> ModelWeights:
    """Matrices as StoredWeight, vectors as arrays, which are read at once.

    Args:
        total: bytes of all tensors in the files. `progress` goes on while weights are read.
    """
    table, done = parts(spec), 0

    def read(name: str, shape: tuple[int, ...]) -> WeightArray:
        nonlocal done
        array, before, latest = np.empty(shape, STORAGE[dtype]), done, 0

        def advance(these: int, of_these: int) -> None:
            nonlocal latest
            latest = these
            if progress is not None:
                progress(before + these, total)

        read_into({tensor: array[rows] for tensor, rows in table[name].items()}, advance)
        done = before + latest
        return array

    def make(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return read(name, shape)
        return StoredWeight(shape, STORAGE[dtype], lambda: read(name, shape))

    return build_weights(spec, dtype, make)


