"""Fresh memory of the CUDA device: what the device puts there is there when the call returns.

Told from a stand-in for CuPy whose default stream runs late. Streams of the device are not ordered behind that stream, so nothing
else would order a kernel.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import numpy.typing as npt
import pytest

import runtime.cuda_probe
from runtime.cuda_probe import GpuFacts

BOUND_TO_CUPY = ("graphs.capture", "graphs.cublas", "graphs.direct_launch", "runtime.cuda_")
FACTS = GpuFacts("late", (9, 0), 2**34, 10, None, 13000, 13000)
H2D, D2H = 1, 2


class LateStream:
    """CUDA's default stream: memsets, and copies from pageable memory, run when somebody waits for it, and no sooner."""

    def __init__(self) -> None:
        self._queued: list[Callable[[], object]] = []

    def memset(self, pointer: int, value: int, nbytes: int) -> None:
        self._queued.append(lambda: ctypes.memset(pointer, value, nbytes))

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        if kind == D2H:
            self.wait()
            ctypes.memmove(target, source, nbytes)
            return
        staged = ctypes.string_at(source, nbytes)  # the caller may change its own at once
        self._queued.append(lambda: ctypes.memmove(target, staged, nbytes))

    def wait(self, stream: int = 0) -> None:
        assert stream == 0
        for run in self._queued:
            run()
        self._queued.clear()


class Memory:
    """Of the GPU: zeros at first."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.zeros(nbytes, np.uint8)
        self.ptr = self._bytes.ctypes.data


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A CudaDevice with poison, over the stand-in."""
    late = LateStream()
    calls = SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        cudaDevAttrIntegrated=0,
        cudaDevAttrCanMapHostMemory=1,
        memcpyHostToDevice=H2D,
        memcpyDeviceToHost=D2H,
        deviceGetAttribute=lambda attribute, number: 1,
        deviceSynchronize=late.wait,
        free=lambda pointer: None,
        memcpy=late.memcpy,
        memset=late.memset,
        streamSynchronize=late.wait,
    )
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(runtime=calls, Memory=Memory, Device=MagicMock(), memory=MagicMock(OutOfMemoryError=MemoryError))
    cupy = ModuleType("cupy")
    vars(cupy).update(cuda=cuda)
    before = dict(sys.modules)
    for name in [name for name in before if name.startswith(BOUND_TO_CUPY) and name != "runtime.cuda_probe"]:
        del sys.modules[name]
    for name in ("cuda.bindings", "nvmath", "nvmath.bindings"):
        sys.modules[name] = MagicMock()
    sys.modules |= {"cupy": cupy, "cupy.cuda": cuda}
    monkeypatch.setattr(runtime.cuda_probe, "gpu_facts", lambda: FACTS)
    try:
        from runtime.cuda_device import CudaDevice

        with CudaDevice(poison=True) as opened:
            yield opened
    finally:
        ours = ("cupy", "cuda.bindings", "nvmath", *BOUND_TO_CUPY)
        for name in [name for name in sys.modules if name.startswith(ours)]:
            del sys.modules[name]
        sys.modules.update(before)


def contents(array: Any) -> npt.NDArray[Any]:
    """Of device memory as a kernel on a stream of the device meets it: nobody waits for the default stream."""
    return np.frombuffer(ctypes.string_at(array.pointer, array.nbytes), array.dtype).reshape(array.shape)


def test_poison_does_not_overwrite_what_a_kernel_wrote_first(device: Any) -> None:
    weight = device.array("weight", (3, 4), np.uint16)
    assert np.all(contents(weight) == 0xA5A5)
    ctypes.memset(weight.pointer, 1, weight.nbytes)  # a kernel, on a stream of its own
    device.seal(weight)
    assert np.all(device.download(weight) == 0x0101), "the poison came late, and the engine runs with weights that are none"


def test_constants_are_there_when_the_call_returns(device: Any) -> None:
    values = np.arange(12, dtype=np.float32)
    constant = device.constant("constant", values)
    assert contents(constant).tolist() == values.tolist()


def test_uploads_are_there_when_the_call_returns(device: Any) -> None:
    values = np.arange(12, dtype=np.int32)
    array = device.array("array", (12,), np.int32)
    device.upload(array, values)
    assert contents(array).tolist() == values.tolist()
