"""The `simulator` executor: Numba's CUDA simulator, every thread of every block, for thread-level tests at tiny shapes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.executor import Bound, KernelArgument
from graphs.launch import Grid
from kernels.lang import SIMULATED, Kernel

_allocating = threading.Lock()


def _shared_array(self: Any, shape: Any, dtype: Any, alignment: int | None = None) -> npt.NDArray[Any]:
    """cuda.shared.array of the simulator, found by the line of its call. The stock one looks, allocates and stores without a lock:
    two threads that meet there get two arrays, about once in a thousand launches."""
    caller = sys._getframe(1)
    line = (caller.f_code.co_filename, caller.f_lineno)
    with _allocating:
        array: npt.NDArray[Any] | None = self._allocations.get(line)
        if array is None:
            array = self._allocations[line] = np.empty(shape, np.dtype(getattr(dtype, "name", dtype)))
    return array


class SimulatorExecutor:
    """Runs kernels in the simulator of this process.

    Args:
        max_threads: blocks are cut to this many threads. The simulator pays one operating-system thread for each, and the block
            size never changes a result.

    Raises:
        RuntimeError: the process was started without NUMBA_ENABLE_CUDASIM=1; Numba reads it once, at import.
    """

    name = "simulator"

    def __init__(self, *, max_threads: int = 8) -> None:
        if not SIMULATED:
            raise RuntimeError("device = simulator needs NUMBA_ENABLE_CUDASIM=1 before Numba is imported: set it and start again")
        self._max_threads = max_threads
        # Barriers of the simulator hand the interpreter from thread to thread: the default 5 ms slice is most of its time.
        sys.setswitchinterval(1e-4)
        from numba.cuda.simulator.kernelapi import FakeCUDAShared

        FakeCUDAShared.array = _shared_array

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        configured = kernel.jit[grid, min(block, self._max_threads)]
        # Wrapped once: the simulator would copy a bare NumPy array to a device of its own and back at each call.
        wrapped = tuple(FakeCUDAArray(arg) if isinstance(arg, np.ndarray) else arg for arg in args)

        def call() -> None:
            configured(*wrapped)

        return call
