"""The `cpu` executor: the same kernel sources, compiled by numba.njit as a launch of one thread in one block.

Barriers vanish, shared and local arrays become stack arrays, threadIdx = blockIdx = 0 and blockDim = gridDim = 1 become
constants, so that a strided loop turns into a plain loop that LLVM vectorises. Compiled code is cached on disk between runs
(graphs/compile_cache.py).
"""

from __future__ import annotations

from collections import namedtuple
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import njit

from graphs.compile_cache import cache_at, give_up, kept, writable_cache_dir
from graphs.executor import Bound, KernelArgument, twin
from graphs.launch import Grid
from kernels.lang import Kernel

_Dim3 = namedtuple("_Dim3", "x y z")

# NaN and infinity keep their meaning (argmax must be NaN-safe); sums may be reassociated, which is what lets LLVM vectorise them.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def _stand_in() -> ModuleType:
    """A module that reads like numba.cuda to a kernel, for one thread in one block."""
    cuda = ModuleType("draftgraph_cpu_cuda")

    @njit
    def grid(ndim):  # type: ignore[no-untyped-def]
        return 0

    @njit
    def gridsize(ndim):  # type: ignore[no-untyped-def]
        return 1

    @njit
    def barrier():  # type: ignore[no-untyped-def]
        pass

    @njit
    def array(shape, dtype):  # type: ignore[no-untyped-def]
        return np.empty(shape, dtype)

    @njit
    def atomic_add(array, index, value):  # type: ignore[no-untyped-def]
        before = array[index]
        array[index] += value
        return before

    @njit
    def atomic_max(array, index, value):  # type: ignore[no-untyped-def]
        before = array[index]
        array[index] = max(before, value)
        return before

    @njit
    def atomic_min(array, index, value):  # type: ignore[no-untyped-def]
        before = array[index]
        array[index] = min(before, value)
        return before

    members: dict[str, Any] = {
        "threadIdx": _Dim3(0, 0, 0),
        "blockIdx": _Dim3(0, 0, 0),
        "blockDim": _Dim3(1, 1, 1),
        "gridDim": _Dim3(1, 1, 1),
        "grid": grid,
        "gridsize": gridsize,
        "syncthreads": barrier,
        "threadfence": barrier,
    }
    for name, value in members.items():
        setattr(cuda, name, value)
    for name, members in (
        ("shared", {"array": array}),
        ("local", {"array": array}),
        ("atomic", {"add": atomic_add, "max": atomic_max, "min": atomic_min}),
    ):
        namespace = ModuleType(f"draftgraph_cpu_cuda.{name}")
        for member, value in members.items():
            setattr(namespace, member, value)
        setattr(cuda, name, namespace)
    return cuda


class CpuExecutor:
    """Compiles each kernel once for each signature and calls it as <<<1, 1>>>.

    Args:
        cache: keep the compiled code on disk between processes.
    """

    name = "cpu"

    def __init__(self, *, cache: bool = True) -> None:
        self._cuda = _stand_in()
        self._cache = cache
        self._compiled: dict[FunctionType, Any] = {}

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        args = tuple(_as_bits(arg) for arg in args)
        types = tuple(numba.typeof(arg) for arg in args)
        compiled = self._compile(kernel.py_func)
        try:
            compiled.compile(types)
        except OSError as error:
            give_up(error)
            self._compiled.clear()
            compiled = self._compile(kernel.py_func)
            compiled.compile(types)

        def call() -> None:
            compiled(*args)

        return call

    def _compile(self, source: FunctionType) -> Any:
        """njit `source` with `cuda` and its device functions replaced by what a CPU has."""
        known = self._compiled.get(source)
        if known is None:
            copy = twin(source, self._cuda, self._compile)
            folder = writable_cache_dir() if self._cache else None
            with cache_at(folder):
                known = njit(copy, error_model="numpy", fastmath=_FASTMATH, nogil=True)
                known = known if folder is None else kept(known)
            self._compiled[source] = known
        return known


def _as_bits(arg: KernelArgument) -> KernelArgument:
    """numba.njit knows no float16: kernels get its bits as int16 (kernels/lang_storage.py)."""
    return arg.view(np.int16) if isinstance(arg, np.ndarray) and arg.dtype == np.float16 else arg
