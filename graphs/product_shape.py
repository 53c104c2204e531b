"""What a matrix product of the library is told by, and what was measured to be the fastest way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from nvmath import CudaDataType

# bfloat16 travels as its bits: NumPy has no type for it.
CUDA_TYPES = {
    np.dtype(np.float32): CudaDataType.CUDA_R_32F,
    np.dtype(np.float16): CudaDataType.CUDA_R_16F,
    np.dtype(np.uint16): CudaDataType.CUDA_R_16BF,
}


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix in device memory; `stride` is the distance between rows, in elements."""

    pointer: int
    rows: int
    columns: int
    stride: int
    dtype: np.dtype[np.generic]


Kind: TypeAlias = "tuple[str, str, int, int]"


class ProductAlgorithms:
    """The fastest algorithm of cuBLAS for a product, by types, shape of the weights and rows, where it is not the library's first.

    Filled once, when an engine is assembled (runtime/models/choose_algorithms.py); read whenever a product is bound.
    """

    def __init__(self) -> None:
        self._known: dict[Kind, dict[int, bytes]] = {}

    def put(self, out: Matrix, x: Matrix, weight: Matrix, algorithm: bytes | None) -> None:
        """None: the library's first."""
        of_kind = self._known.setdefault(_kind(out, x, weight), {})
        of_kind[x.rows] = algorithm or b""

    def get(self, out: Matrix, x: Matrix, weight: Matrix) -> bytes | None:
        """That of as many rows, or of the next more that were measured."""
        of_kind = self._known.get(_kind(out, x, weight), {})
        rows = min((rows for rows in of_kind if rows >= x.rows), default=None)
        return None if rows is None else of_kind[rows] or None


def _kind(out: Matrix, x: Matrix, weight: Matrix) -> Kind:
    return str(x.dtype), str(out.dtype), weight.rows, weight.columns
