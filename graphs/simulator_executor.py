"""The `simulator` executor: Numba's CUDA simulator, every thread of every block, for thread-level tests at tiny shapes."""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any

import numpy as np
from numba.core.types import Number

from graphs.executor import Bound, KernelArgument, twin
from graphs.launch import Grid
from kernels import lang_storage
from kernels.lang import SIMULATED, Kernel


class SimulatorExecutor:
    """Runs kernels in the simulator of this process, one launch at a time.

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
        from graphs.simulator_block import SimulatedCuda

        self._max_threads = max_threads
        self._cuda = SimulatedCuda()
        self._launching = threading.Lock()
        self._twins: dict[FunctionType, Any] = {}

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        run = self._twin(kernel.py_func)
        blocks = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
        threads = (min(block, self._max_threads), 1, 1)

        def call() -> None:
            with self._launching:
                self._cuda.launch(lambda: run(*args), blocks, threads)

        return call

    def _twin(self, source: FunctionType) -> Any:
        """`source` over the simulated device, and what takes most of its time put in quicker words: Numba's casts, which look up
        NumPy's at each call, become NumPy's, here and in the primitives that it calls, and `widen` a table."""
        if source not in self._twins:
            copy = twin(source, self._cuda, self._twin)
            names = copy.__globals__
            for name, value in names.items():
                if isinstance(value, Number):
                    names[name] = getattr(np, value.name)
            for name in source.__code__.co_names:
                value = names.get(name)
                if value is lang_storage.widen:
                    names[name] = widen
                elif isinstance(value, FunctionType) and value.__module__.startswith("kernels.") and value.__closure__ is None:
                    names[name] = self._twin(value)
            self._twins[source] = copy
        return self._twins[source]


_WIDE = tuple((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32))
"""The float32 of each bfloat16."""


def widen(value: Any) -> Any:
    """kernels.lang_storage.widen, without a look at the type's name and arithmetic of NumPy's scalars, which takes twenty times as
    long."""
    if value.__class__ is np.float32:
        return value
    return _WIDE[value] if value.__class__ is np.uint16 else lang_storage.widen(value)
