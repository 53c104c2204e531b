"""The language every kernel is written in. This is the only module that imports numba.cuda.

One source, three lives: compiled by numba-cuda for a GPU, run thread by thread in Numba's CUDA simulator, and compiled by
`numba.njit` for a CPU as a launch of one thread in one block (graphs/cpu_executor.py swaps `cuda` for a stand-in).
Three rules keep the three equal:

* every loop strides by blockDim/gridDim, so that <<<1, 1>>> is a legal launch and the block size never changes a result;
* every literal and every intermediate that may be promoted is cast (`f32(0.5)`): on a GPU `f32 * 0.5` is float64 and
  `i32 + 1` int64, in the simulator they stay narrow;
* one `cuda.shared.array` a source line: the simulator tells two of them apart by their line number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64
from numba.core import config as _numba_config

f32, i32, i64, u32, u64 = float32, int32, int64, uint32, uint64

SIMULATED = bool(_numba_config.ENABLE_CUDASIM)
"""True when this process was started with NUMBA_ENABLE_CUDASIM=1: kernels then run in Numba's CUDA simulator."""

MAX_THREADS = 1024
"""Largest block that a kernel may be launched with: shared scratch arrays of the reductions are this long."""

NEG_INF = f32(-float("inf"))

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel and its contract: the parameters it has, and those that it stores to (a store may be partial).

    Attributes:
        name: the function's name, used in traces, race reports and signatures.
        py_func: the plain Python source function.
        params: parameter names in order.
        writes: the parameters that the kernel stores to; every other array parameter is only read.
        jit: numba-cuda dispatcher on a GPU build, the simulator's kernel under NUMBA_ENABLE_CUDASIM=1.
        overlap: it waits for the launch before it on its own (kernels/lang_overlap.py), so a GPU may start it early.
        early: the parameters that it reads before that wait.
        cluster: blocks that work together; a GPU gets as many for each along the first axis of the grid, others get one.
        spread: where launches overlap, no multiprocessor of a GPU takes more of its blocks than an even share.
        shared: bytes of a GPU's dynamic shared memory, `cuda.shared.array(0, ...)` in the source; others have none.
    """

    name: str
    py_func: FunctionType
    params: tuple[str, ...]
    writes: frozenset[str]
    jit: Any
    overlap: bool = False
    early: frozenset[str] = frozenset()
    cluster: int = 1
    spread: bool = False
    shared: int = 0

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


def kernel(
    *,
    writes: tuple[str, ...],
    max_registers: int | None = None,
    overlap: bool = False,
    early: tuple[str, ...] = (),
    cluster: int = 1,
    spread: bool = False,
    shared: int = 0,
) -> Callable[[_F], Kernel]:
    """Declare a kernel.

    Args:
        writes: the parameters that it stores to; checked against the source by tests/test_kernels_contracts.py.
        max_registers: of a thread on a GPU, so that more blocks fit; None leaves it to the compiler.
        overlap: `wait_for_launches()` (kernels/lang_overlap.py) comes before everything that reads an array or stores to one, but
            for reads of `early`; checked against the PTX by tests/test_kernels_ptx.py.
        early: see `overlap`.
        cluster: see Kernel.
        spread: see Kernel. For blocks of one length that fill the GPU once: started early, they would crowd where the launch before
            ends first.
        shared: see Kernel.
    """
    options = {} if SIMULATED or max_registers is None else {"max_registers": max_registers}

    def declare(func: _F) -> Kernel:
        assert isinstance(func, FunctionType)
        params = tuple(signature(func).parameters)
        for role, names in (("writes", writes), ("early", early)):
            unknown = set(names) - set(params)
            if unknown:
                raise TypeError(f"{func.__name__}: {role} = {sorted(unknown)} are no parameters of it")
        if early and not overlap:
            raise TypeError(f"{func.__name__}: early = {sorted(early)} means nothing without overlap")
        jit = cuda.jit(func, **options)
        return Kernel(func.__name__, func, params, frozenset(writes), jit, overlap, frozenset(early), cluster, spread, shared)

    return declare


def device_function(func: _F) -> _F:
    """Declare a function that kernels call. Never launched by itself."""
    jitted: _F = cuda.jit(device=True)(func)
    return jitted


def source_of(obj: object) -> FunctionType | None:
    """The Python function behind a device function (numba-cuda: `py_func`, simulator: `fn`); None for anything else."""
    if isinstance(obj, Kernel):
        return None
    source = getattr(obj, "py_func", None) or getattr(obj, "fn", None)
    return source if isinstance(source, FunctionType) and source.__module__.startswith("kernels.") else None


@device_function
def float_of_bits(bits):
    """The float32 whose bits are those of an int32."""
    return np.int32(bits).view(np.float32)


@device_function
def bits_of_float(value):
    """The bits of a float32, as an int32."""
    return np.float32(value).view(np.int32)


@device_function
def block_sum(value, scratch):
    """Sum of `value` over the block, returned to every thread.

    scratch: float32 shared [>= blockDim.x]; free for reuse on return. Tree of pairs: the order depends on blockDim alone.
    """
    tid = cuda.threadIdx.x
    scratch[tid] = value
    cuda.syncthreads()
    width = i32(cuda.blockDim.x)
    while width > i32(1):
        half = (width + i32(1)) // i32(2)
        if tid < width - half:
            scratch[tid] += scratch[tid + half]
        cuda.syncthreads()
        width = half
    total = scratch[0]
    cuda.syncthreads()
    return total


@device_function
def block_max(value, scratch):
    """Maximum of `value` over the block, returned to every thread. scratch as in `block_sum`. NaN never wins."""
    tid = cuda.threadIdx.x
    scratch[tid] = value
    cuda.syncthreads()
    width = i32(cuda.blockDim.x)
    while width > i32(1):
        half = (width + i32(1)) // i32(2)
        if tid < width - half and scratch[tid + half] > scratch[tid]:
            scratch[tid] = scratch[tid + half]
        cuda.syncthreads()
        width = half
    largest = scratch[0]
    cuda.syncthreads()
    return largest
