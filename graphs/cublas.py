"""Matrix products by cuBLAS, captured like any kernel: nvmath's bindings, because CuPy refuses cuBLAS inside a capture.

One handle a stream, with a workspace of its own: cuBLAS otherwise allocates one at the first call, which a capture forbids, and two
streams must not share one.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np
from cupy.cuda import runtime
from nvmath.bindings import cublas

from graphs.cublas_lt import CublasLt
from graphs.product_shape import CUDA_TYPES, Matrix, ProductAlgorithms

WORKSPACE_BYTES = 64 * 2**20


def supported(out: Matrix, x: Matrix, weight: Matrix) -> bool:
    """Can `Cublas.product` multiply these dtypes? x and weight alike; out as they are, or float32."""
    return x.dtype == weight.dtype and x.dtype in CUDA_TYPES and out.dtype in (x.dtype, np.dtype(np.float32))


class Cublas:
    """A handle bound to one stream. Sums are float32 whatever is stored; float32 is not rounded to TF32.

    Args:
        stream: pointer of the CUDA stream that every product is queued on.
        algorithms: which products are multiplied by another algorithm than the library's first; None: none.
    """

    def __init__(self, stream: int, algorithms: ProductAlgorithms | None = None) -> None:
        self._stream = stream
        self._algorithms = ProductAlgorithms() if algorithms is None else algorithms
        self._handle = cublas.create()
        self._workspace = cupy.cuda.Memory(WORKSPACE_BYTES)
        cublas.set_stream(self._handle, stream)  # resets the workspace: it comes first
        cublas.set_workspace(self._handle, self._workspace.ptr, WORKSPACE_BYTES)
        cublas.set_math_mode(self._handle, cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION)
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        self._warm: set[tuple[object, ...]] = set()
        self.lt = CublasLt(stream, self._workspace.ptr, WORKSPACE_BYTES)

    def product(self, out: Matrix, x: Matrix, weight: Matrix) -> Callable[[], None]:
        """A call that queues out = x @ weight.T over all rows of x; pads are computed too."""
        algorithm = self._algorithms.get(out, x, weight)
        chosen = None if algorithm is None else self.lt.product(out, x, weight, algorithm)
        return self._first(out, x, weight) if chosen is None else chosen

    def _first(self, out: Matrix, x: Matrix, weight: Matrix) -> Callable[[], None]:
        """`product` by the library's first algorithm."""
        # cuBLAS is column-major, where a row-major matrix is its transpose: out.T [n, m] = weight [n, k] @ x.T [k, m].
        arguments = (
            self._handle,
            cublas.Operation.T,
            cublas.Operation.N,
            weight.rows,
            x.rows,
            x.columns,
            self._one.ctypes.data,
            weight.pointer,
            CUDA_TYPES[weight.dtype],
            weight.stride,
            x.pointer,
            CUDA_TYPES[x.dtype],
            x.stride,
            self._zero.ctypes.data,
            out.pointer,
            CUDA_TYPES[out.dtype],
            out.stride,
            cublas.ComputeType.COMPUTE_32F,
            cublas.GemmAlgo.DEFAULT,
        )

        def call() -> None:
            cublas.gemm_ex(*arguments)

        return call

    def warm_up(self, out: Matrix, x: Matrix, weight: Matrix) -> None:
        """Run the product once into memory that is thrown away: cuBLAS loads code for a shape at its first call, and waits.

        Does nothing for a shape that was run before. Call it before a capture, never inside.
        """
        algorithm = self._algorithms.get(out, x, weight)
        key = (out.dtype, x.dtype, x.rows, x.columns, x.stride, weight.rows, weight.stride, algorithm)
        if key not in self._warm:
            nowhere = cupy.cuda.Memory(max(1, out.rows * out.columns * out.dtype.itemsize))
            self.product(Matrix(nowhere.ptr, out.rows, out.columns, out.columns, out.dtype), x, weight)()
            runtime.streamSynchronize(self._stream)
            self._warm.add(key)

    def close(self) -> None:
        """Destroy the handle and free the workspace."""
        self.lt.close()
        cublas.destroy(self._handle)
        del self._workspace
