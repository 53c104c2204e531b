"""The first visible GPU, as runtime/device.py describes a device: CuPy's memory, streams and graphs, Numba's kernels, cuBLAS.

Imported only where CuPy is installed. One host thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
from cupy.cuda import runtime

from graphs.capture import DriverError
from graphs.launch import Array
from graphs.product_shape import ProductAlgorithms
from kernels.lang import Kernel
from kernels.lang_overlap import HOPPER
from runtime.cuda_capture import CudaCapture
from runtime.cuda_compiler import CudaCompiler
from runtime.cuda_heap import CudaHeap, abandon
from runtime.cuda_memory import CudaAllocation, CudaArray, CudaHostArray, CudaMappedArray, CudaPinnedArray
from runtime.cuda_probe import gpu_facts
from runtime.cuda_room import no_room, out_of_memory
from runtime.cuda_stream import CudaEvent, CudaStream
from runtime.device_state import DeviceState
from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree
from runtime.virtual_memory import Kind, as_storable

_CUDA_PACKAGES = frozenset({"cupy", "cupy_backends", "cuda", "numba", "nvmath"})


class CudaDevice(DeviceState[CudaCapture]):
    """Opened once, closed once; usable as a context.

    Args:
        poison: fill fresh memory with what nobody should ever read: NaN, or bytes of 0xA5.
        overlap: kernels that can be started early are, if the GPU can (docs/launches.md).

    Attributes:
        name: of the GPU. facts: what else is known of it.
        integrated: host and device share their memory. can_map: kernels can see page-locked memory. has_clock: events can be timed.
        overlaps: the GPU can, and may.
        algorithms: of the library's products, where another than its first was measured faster.
        frees: arrays freed so far. closers: called at close.

    Open it with runtime.device.open_device, which first asks cuda_unavailable(). Raises DeviceError when CUDA cannot start.
    """

    def __init__(self, *, poison: bool = False, overlap: bool = True) -> None:
        super().__init__()
        self.facts = gpu_facts()
        self.overlaps = overlap and self.facts.compute_capability >= HOPPER
        self.name = self.facts.name
        self.integrated = bool(runtime.deviceGetAttribute(runtime.cudaDevAttrIntegrated, 0))
        self.can_map = bool(runtime.deviceGetAttribute(runtime.cudaDevAttrCanMapHostMemory, 0))
        self.has_clock = True
        self.poison = poison
        self.algorithms = ProductAlgorithms()
        self.frees = 0
        self.closers: list[Callable[[], None]] = []
        self._heap = CudaHeap(self, self._check_host_access)
        self._compiler = CudaCompiler(self.name)
        self._failed = False
        try:
            cupy.cuda.Device(0).use()
            runtime.free(0)  # creates the context
        except runtime.CUDARuntimeError as error:
            why = no_room(self.name) if out_of_memory(error) else "see in nvidia-smi who holds it, and in what mode it is"
            raise DeviceError(f"{self.name} cannot be opened: {error}: {why}; or set device = cpu") from error

    @property
    def description(self) -> str:
        return str(self.facts)

    @property
    def failed(self) -> bool:
        """CUDA reported an error: the device takes no more work, and can only be closed."""
        return self._failed

    # Memory

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> CudaArray:
        """Device memory, undefined until something writes it; with poison that is there. DeviceError when it does not fit."""
        array = self._heap.device_array(name, "device", shape, np.dtype(dtype))
        if self.poison:
            with self.reports(f"poison of `{name}`"):
                runtime.memset(array.pointer, 0xFF if array.dtype.kind == "f" else 0xA5, array.nbytes)
                self._settle()
        return array

    def constant(self, name: str, values: npt.ArrayLike) -> CudaArray:
        """Read-only device memory with a copy of `values`. Blocks until it is there."""
        source = np.asarray(values, order="C")
        array = self._heap.device_array(name, "constant", source.shape, source.dtype)
        if source.nbytes:
            with self.reports(f"upload of constant `{name}`"):
                runtime.memcpy(array.pointer, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
                self._settle()
        return array

    def seal(self, array: Array) -> None:
        """Wait for everything, then make an array of device memory a constant, with all its views: nothing writes it any more."""
        own = self._transfer("seal", array)
        if own.allocation.kind != "device":
            raise DeviceError(f"seal: `{array.name}` is {own.allocation.kind} memory; only device memory becomes a constant")
        own.allocation.kind = "constant"

    def pinned(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> CudaPinnedArray:
        """Page-locked host memory, undefined until something writes it."""
        return self._heap.host_array(CudaPinnedArray, name, "pinned", shape, np.dtype(dtype), runtime.hostAllocPortable)

    def mapped(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> CudaMappedArray:
        """Page-locked memory that kernels and the host both see, undefined until something writes it.

        DeviceError: the device cannot map.
        """
        if not self.can_map:
            raise DeviceError(f"mapped memory `{name}`: this device cannot map host memory; use mirror.policy = discrete")
        flags = runtime.hostAllocPortable | runtime.hostAllocMapped
        return self._heap.host_array(CudaMappedArray, name, "mapped", shape, np.dtype(dtype), flags)

    def free(self, array: Array) -> None:
        """Wait for the device, then end an array and all its views. UseAfterFree: freed before."""
        allocation = self._own("free", array).allocation
        self.refuse_in_capture(f"free of `{array.name}`")
        if allocation.freed:
            raise UseAfterFree(f"`{array.name}` is freed twice")
        self.synchronize()
        self._heap.release(allocation)
        self.frees += 1

    def allocated_bytes(self) -> dict[Kind, int]:
        """Bytes held at present, by kind of memory."""
        return self._heap.held_bytes()

    def free_bytes(self) -> int:
        """Bytes of GPU memory that nobody holds."""
        with self.reports("question for free memory"):
            return int(runtime.memGetInfo()[0])

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Wait for everything, then a copy of `array`: for tests and gates, never for a step."""
        own = self._transfer("download", array)
        if isinstance(own, CudaHostArray):
            return own.read()
        return np.array(self._whole(own)[1])

    def upload(self, array: Array, values: npt.ArrayLike) -> None:
        """Wait for everything, then array[...] = values: for start-up and tests, never for a step."""
        own = self._transfer("upload", array)
        if own.allocation.kind == "constant":
            raise DeviceError(f"upload: `{array.name}` is a constant and cannot be written")
        source = as_storable(own, values)
        if source.shape != array.shape:
            raise DeviceError(f"upload: {source.shape} does not fit `{array.name}` {array.shape}")
        if isinstance(own, CudaHostArray):
            own.write(source)
            return
        whole, view = self._whole(own)
        view[...] = source
        with self.reports(f"upload of `{own.name}`"):
            runtime.memcpy(own.allocation.pointer, whole.ctypes.data, own.allocation.nbytes, runtime.memcpyHostToDevice)
            self._settle()

    # Order

    def stream(self, name: str) -> CudaStream:
        self._refuse_closed()
        with self.reports(f"making stream `{name}`"):
            return CudaStream(self, name)

    def event(self, name: str = "event", *, timing: bool = False) -> CudaEvent:
        """timing: the event can tell milliseconds_since another."""
        self._refuse_closed()
        with self.reports(f"making event `{name}`"):
            return CudaEvent(self, name, timing=timing)

    def synchronize(self) -> None:
        """Block the host until everything has run."""
        self.refuse_in_capture("synchronize of the device")
        self.counters.device_synchronizes += 1
        with self.reports("synchronize of the device"):
            runtime.deviceSynchronize()

    def close(self) -> None:
        """Wait for what is queued, then free everything. Does nothing the second time."""
        if self._closed:
            return
        self.refuse_in_capture("close of the device")
        try:
            if not self._failed:
                self.synchronize()
                with self.reports("close of the device"):
                    for close in self.closers:
                        close()
        finally:
            lost = self._failed and not self._answers()
            if lost:
                abandon(self.closers)
            self._heap.release_all(lost=lost)
            self._end()

    def _answers(self) -> bool:
        """Does CUDA still do what it is asked for? After an error of a kernel it answers every call with that."""
        try:
            runtime.memGetInfo()
        except runtime.CUDARuntimeError:
            return False
        return True

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __str__(self) -> str:
        held = ", ".join(f"{kind} {nbytes:,} B" for kind, nbytes in self.allocated_bytes().items())
        return f"CudaDevice({self.description}, {held})"

    # For the other rooms of the device

    def compile(self, kernel: Kernel, types: tuple[Any, ...], block: int) -> int:
        """The driver's handle of `kernel` for these argument types: see CudaCompiler.handle."""
        return self._compiler.handle(kernel, types, block)

    def reports(self, what: str) -> _Reports:
        """A context that turns errors of CUDA and of its packages into DeviceError."""
        return _Reports(self, what)

    def report(self, error: BaseException, what: str) -> None:
        """Raise DeviceError from an error of CUDA or of one of its packages; return from any other."""
        if not (isinstance(error, DriverError) or type(error).__module__.partition(".")[0] in _CUDA_PACKAGES):
            return
        if out_of_memory(error):
            raise DeviceError(f"{what} ran out of memory: {no_room(self.name)}") from error
        # close() must not wait for work that will never end well.
        self._failed = True
        raise DeviceError(
            f"{what} failed on {self.name}: {error}; an error of a kernel shows at a later call: "
            "graphs.mode = eager and compute-sanitizer find the kernel"
        ) from error

    def _whole(self, array: CudaArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
        """A host copy of the whole allocation of `array`, and the view of it that `array` is."""
        allocation = array.allocation
        whole = np.empty(allocation.nbytes, np.uint8)
        if allocation.nbytes:
            with self.reports(f"download of `{array.name}`"):
                runtime.memcpy(whole.ctypes.data, allocation.pointer, allocation.nbytes, runtime.memcpyDeviceToHost)
        return whole, np.ndarray(array.shape, array.dtype, whole, array.offset, array.strides)

    def _settle(self) -> None:
        """Wait for CUDA's default stream. A memset returns before it has run, a copy from pageable memory before all of it has
        arrived, and our streams are not ordered behind either: a late poison would overwrite what a kernel has written by then."""
        runtime.streamSynchronize(0)

    def _check_host_access(self, allocation: CudaAllocation, what: str) -> None:
        if allocation.freed:
            raise UseAfterFree(f"{what} of `{allocation.name}` by the host: it was freed")
        if self.capturing is not None:
            self.refuse_in_capture(f"{what} of `{allocation.name}` by the host")

    def _transfer(self, what: str, array: Array) -> CudaArray:
        own = self._own(what, array)
        if own.allocation.freed:
            raise UseAfterFree(f"{what}: `{array.name}` was freed")
        self.refuse_in_capture(f"{what} of `{array.name}`")
        self.counters.transfers += 1
        with self.reports(f"{what} of `{array.name}`"):
            runtime.deviceSynchronize()
        return own

    def _own(self, what: str, array: Array) -> CudaArray:
        if not isinstance(array, CudaArray) or array.allocation.device is not self:
            raise DeviceError(f"{what}: {array!r} is no array of this device")
        return array


class _Reports:
    """Where a call is no part of a steady step: those catch errors themselves, which costs nothing until there is one."""

    __slots__ = ("_device", "_what")

    def __init__(self, device: CudaDevice, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._device.report(error, self._what)
