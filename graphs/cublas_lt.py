"""Algorithms of cuBLAS beside the one that cublasGemmEx takes: its heuristics list them, whoever has measured says which.

cublasGemmEx asks the same heuristics and takes their first answer, which is up to a tenth slower than a later one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from nvmath.bindings import cublas, cublasLt

from graphs.product_shape import CUDA_TYPES, Matrix

MOST = 6
"""Algorithms of a product worth measuring; they come in the order in which the heuristics believe in them."""

ALGORITHM_BYTES = cublasLt.matmul_heuristic_result_dtype["algo"].itemsize

_FLOAT32_SUMS = 3
"""Reduction schemes of split sums: in place, or in float32; none in the type of a 16-bit result."""


class CublasLt:
    """A handle, and the descriptors of the products that were asked for.

    Args:
        stream: pointer of the CUDA stream.
        workspace: pointer, and `workspace_bytes` its size; shared with whatever else is queued on this stream alone.
    """

    def __init__(self, stream: int, workspace: int, workspace_bytes: int) -> None:
        self._stream, self._workspace, self._workspace_bytes = stream, workspace, workspace_bytes
        self._handle = cublasLt.create()
        self._description = cublasLt.matmul_desc_create(cublas.ComputeType.COMPUTE_32F, CUDA_TYPES[np.dtype(np.float32)])
        _set(
            cublasLt.matmul_desc_set_attribute, self._description, cublasLt.MatmulDescAttribute.TRANSA, cublas.Operation.T, np.int32
        )
        self._preference = cublasLt.matmul_preference_create()
        for attribute, value, kind in (
            (cublasLt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, workspace_bytes, np.uint64),
            (cublasLt.MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK, _FLOAT32_SUMS, np.uint32),
        ):
            _set(cublasLt.matmul_preference_set_attribute, self._preference, attribute, value, kind)
        self._layouts: dict[tuple[Any, ...], int] = {}
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def algorithms(self, out: Matrix, x: Matrix, weight: Matrix) -> list[bytes]:
        """Up to `MOST` algorithms that can multiply these."""
        found, count = cublasLt.MatmulHeuristicResult(MOST), np.zeros(1, np.int32)
        layouts = self._layouts_of(out, x, weight)
        cublasLt.matmul_algo_get_heuristic(
            self._handle, self._description, *layouts, layouts[-1], self._preference, MOST, found.ptr, count.ctypes.data
        )
        size = cublasLt.matmul_heuristic_result_dtype.itemsize  # the algorithm comes first in each result
        return [ctypes.string_at(found.ptr + i * size, ALGORITHM_BYTES) for i in range(int(count[0]))]

    def product(self, out: Matrix, x: Matrix, weight: Matrix, algorithm: bytes) -> Callable[[], None] | None:
        """A call that queues out = x @ weight.T by this algorithm; None: it cannot multiply these."""
        words = np.frombuffer(algorithm, np.uint8).copy()
        a, b, d = self._layouts_of(out, x, weight)
        try:
            verdict = cublasLt.MatmulHeuristicResult(1)
            cublasLt.matmul_algo_check(self._handle, self._description, a, b, d, d, words.ctypes.data, verdict.ptr)
        except cublasLt.cuBLASLtError:
            return None
        arguments = (
            self._handle,
            self._description,
            self._one.ctypes.data,
            weight.pointer,
            a,
            x.pointer,
            b,
            self._zero.ctypes.data,
            out.pointer,
            d,
            out.pointer,
            d,
            words.ctypes.data,
            self._workspace,
            self._workspace_bytes,
            self._stream,
        )

        def call(words: Any = words) -> None:  # holds the algorithm that `arguments` points to
            cublasLt.matmul(*arguments)

        return call

    def close(self) -> None:
        for layout in self._layouts.values():
            cublasLt.matrix_layout_destroy(layout)
        cublasLt.matmul_preference_destroy(self._preference)
        cublasLt.matmul_desc_destroy(self._description)
        cublasLt.destroy(self._handle)

    def _layouts_of(self, out: Matrix, x: Matrix, weight: Matrix) -> tuple[int, int, int]:
        """Of weight.T, x.T and out.T, column-major: graphs/cublas.py says why."""
        a, b, d = (self._layout(matrix) for matrix in (weight, x, out))
        return a, b, d

    def _layout(self, matrix: Matrix) -> int:
        key = (matrix.dtype, matrix.columns, matrix.rows, matrix.stride)
        if key not in self._layouts:
            self._layouts[key] = cublasLt.matrix_layout_create(CUDA_TYPES[matrix.dtype], matrix.columns, matrix.rows, matrix.stride)
        return self._layouts[key]


def _set(setter: Callable[..., None], target: int, attribute: int, value: int, kind: Any) -> None:
    held = np.array([int(value)], kind)
    setter(target, int(attribute), held.ctypes.data, held.nbytes)
