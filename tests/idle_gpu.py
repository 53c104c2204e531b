"""A CUDA device on which nothing runs: the host's side of a step, and nothing else, on any machine.

The modules that talk to CUDA are replaced by calls that do nothing, so that everything above them (runtime/cuda_*.py, runner,
scheduler, engine) is what a GPU would have: its Python is counted and timed here. Outcomes are what `Idle.answer` says.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

import runtime.cuda_probe
from runtime.cuda_probe import GpuFacts

BOUND_TO_CUPY = ("graphs.capture", "graphs.cublas", "graphs.direct_launch", "runtime.cuda_")
FACTS = GpuFacts("idle", (9, 0), 2**34, 132, None, 13000, 13000)
FREE_BYTES = 2**30


def _nothing(*args: object, **kwargs: object) -> int:
    return 0


class _Memory:
    """Of the GPU, and page-locked."""

    def __init__(self, nbytes: int, flags: int = 0) -> None:
        # Mapped, and not from the heap: what nobody touches is then in no memory.
        self._bytes = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
        self.ptr = self._bytes.ctypes.data
        self.nbytes = nbytes


class _PinnedPointer:
    """A buffer, as NumPy wants one."""

    def __new__(cls, memory: _Memory, offset: int) -> Any:
        buffer = (ctypes.c_uint8 * memory.nbytes).from_buffer(memory._bytes)
        buffer.ptr = memory.ptr
        return buffer


class _Event:
    done = True

    def __init__(self, disable_timing: bool = False) -> None:
        pass

    record = synchronize = _nothing


class _Graph:
    launch = upload = _nothing


class _Stream:
    ptr = 1
    done = True

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    begin_capture = wait_event = synchronize = _nothing

    def end_capture(self) -> _Graph:
        return _Graph()


def _cupy() -> tuple[ModuleType, ModuleType]:
    calls = SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        cudaDevAttrIntegrated=0,
        cudaDevAttrCanMapHostMemory=1,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDefault=4,
        hostAllocPortable=1,
        hostAllocMapped=2,
        deviceGetAttribute=lambda attribute, number: int(attribute == 1),
        memGetInfo=lambda: (FREE_BYTES, FREE_BYTES),
        pointerGetAttributes=lambda pointer: SimpleNamespace(devicePointer=pointer),
        **dict.fromkeys(
            ("deviceSynchronize", "free", "memcpy", "memset", "streamSynchronize", "memcpyAsync", "memcpy2DAsync"), _nothing
        ),
    )
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(
        runtime=calls,
        Memory=_Memory,
        Device=MagicMock(),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        pinned_memory=SimpleNamespace(PinnedMemory=_Memory, PinnedMemoryPointer=_PinnedPointer),
        Event=_Event,
        Stream=_Stream,
        get_elapsed_time=lambda first, second: 0.0,
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(cuda=cuda)
    return cupy, cuda


@contextmanager
def idle_gpu() -> Iterator[Any]:
    """runtime.cuda_device, imported over calls that do nothing; what it replaced is back afterwards."""
    cupy, cuda = _cupy()
    before, facts = dict(sys.modules), runtime.cuda_probe.gpu_facts
    for name in [name for name in before if name.startswith(BOUND_TO_CUPY) and name != "runtime.cuda_probe"]:
        del sys.modules[name]
    for name in ("cuda.bindings", "nvmath", "nvmath.bindings"):
        sys.modules[name] = MagicMock()
    sys.modules |= {"cupy": cupy, "cupy.cuda": cuda}
    runtime.cuda_probe.gpu_facts = lambda: FACTS
    try:
        import runtime.cuda_device as module
        from graphs.direct_launch import DirectLaunch
        from runtime.cuda_memory import CudaArray

        vars(sys.modules["runtime.cuda_stream"])["cuda"] = SimpleNamespace(external_stream=_nothing)
        vars(sys.modules["runtime.cuda_work"])["fill_async"] = _nothing
        vars(sys.modules["runtime.cuda_work"])["allow_shared"] = _nothing
        module.CudaDevice.compile = lambda self, kernel, types, block: 0  # type: ignore[method-assign]
        CudaArray.numba = SimpleNamespace(_numba_type_=None)  # type: ignore[assignment, method-assign]
        library = SimpleNamespace(product=lambda *matrices: _nothing, warm_up=_nothing, close=_nothing)
        vars(sys.modules["runtime.cuda_stream"])["Cublas"] = lambda *arguments: library
        DirectLaunch.__init__ = _nothing_at_all  # type: ignore[assignment, method-assign]
        DirectLaunch.issue = _nothing  # type: ignore[assignment, method-assign]
        yield module
    finally:
        runtime.cuda_probe.gpu_facts = facts
        ours = ("cupy", "cuda.bindings", "nvmath", *BOUND_TO_CUPY)
        for name in [name for name in sys.modules if name.startswith(ours)]:
            del sys.modules[name]
        sys.modules.update(before)


def _nothing_at_all(self: object, *args: object) -> None:
    """In place of packing a launch."""
