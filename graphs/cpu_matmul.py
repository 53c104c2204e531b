"""Matrix products of a CPU: OpenBLAS for one row and for many, our own loop for the few rows of a verify step.

BLAS copies the weights into a layout of its own for every product of several rows, which costs more than the product when there
are few; one row goes another way there. The loop below streams each weight once from memory, four input rows at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import threadpoolctl
from numba import njit, prange

from graphs.compile_cache import cache_at, give_up, kept, writable_cache_dir

FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

FEW_ROWS = range(2, 17)
"""Rows that the loop takes. Measured at 8 rows on one thread with AVX-512, OpenBLAS against a loop like this, in ms: 27 and 14 for
weights [49152, 576], 1.26 and 0.53 for [3072, 576], 0.60 and 0.22 for [576, 1536]. Where the two cross was not measured."""

Float32s = npt.NDArray[np.float32]


def _few_rows(out, x, weight):  # type: ignore[no-untyped-def]
    rows, depth = x.shape
    outputs = weight.shape[0]
    for pair in prange((outputs + 1) // 2):
        a = 2 * pair
        b = min(a + 1, outputs - 1)  # an odd last row is computed twice: the same bits in the same place
        m = 0
        while m + 4 <= rows:
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
            for k in range(depth):
                wa, wb = weight[a, k], weight[b, k]
                x0, x1, x2, x3 = x[m, k], x[m + 1, k], x[m + 2, k], x[m + 3, k]
                a0 += wa * x0
                a1 += wa * x1
                a2 += wa * x2
                a3 += wa * x3
                b0 += wb * x0
                b1 += wb * x1
                b2 += wb * x2
                b3 += wb * x3
            out[m, a], out[m + 1, a], out[m + 2, a], out[m + 3, a] = a0, a1, a2, a3
            out[m, b], out[m + 1, b], out[m + 2, b], out[m + 3, b] = b0, b1, b2, b3
            m += 4
        while m < rows:
            a0 = b0 = np.float32(0)
            for k in range(depth):
                a0 += weight[a, k] * x[m, k]
                b0 += weight[b, k] * x[m, k]
            out[m, a], out[m, b] = a0, b0
            m += 1


@cache
def _compiled() -> Any:
    folder = writable_cache_dir()
    with cache_at(folder):
        compiled = njit(_few_rows, parallel=True, nogil=True, error_model="numpy", fastmath=FASTMATH)
        return compiled if folder is None else kept(compiled)


def use_threads(count: int) -> None:
    """Let products of this process use `count` threads from now on: BLAS, which NumPy shares, and our own loop."""
    threadpoolctl.threadpool_limits(limits=count, user_api="blas")
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def prepare(out: Float32s, x: Float32s, weight: Float32s) -> None:
    """Compile for the types of these arrays, so that no step waits for it."""
    if x.shape[0] >= FEW_ROWS.start:
        types = tuple(numba.typeof(array) for array in (out, x, weight))
        try:
            _compiled().compile(types)
        except OSError as error:
            give_up(error)
            _compiled.cache_clear()
            _compiled().compile(types)


def multiply(out: Float32s, x: Float32s, weight: Float32s) -> None:
    """out = x @ weight.T for contiguous float32: out [rows, n_out], x [rows, n_in], weight [n_out, n_in]."""
    if x.shape[0] in FEW_ROWS:
        _compiled()(out, x, weight)
    else:
        np.matmul(x, weight.T, out=out)
