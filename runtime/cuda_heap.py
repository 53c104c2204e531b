"""CudaHeap: device memory and page-locked memory by name, and what is said when there is none left."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from runtime.cuda_memory import CudaAllocation, CudaArray, HostCheck, contiguous_strides
from runtime.cuda_room import REMEDY, no_room
from runtime.errors import DeviceError
from runtime.virtual_memory import Kind

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def abandon(owner: object) -> None:
    """Let `owner` never end: freeing memory of a GPU that has failed only fails, and CuPy can tell that by a traceback alone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class CudaHeap:
    """The allocations of one device.

    Args:
        check_host_access: raises when the host must not touch an allocation now.
    """

    def __init__(self, device: CudaDevice, check_host_access: HostCheck) -> None:
        self._device, self._check_host_access = device, check_host_access
        self._allocations: dict[str, CudaAllocation] = {}

    def device_array(self, name: str, kind: Kind, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        """Undefined memory of the GPU. DeviceError: a name that is taken, or no room."""
        nbytes = math.prod(shape) * dtype.itemsize
        self._admit(name)
        memory = self._reserve(kind, name, nbytes, lambda: cupy.cuda.Memory(max(nbytes, 1)))
        allocation = self._allocations[name] = CudaAllocation(self._device, name, kind, nbytes, int(memory.ptr), memory, None)
        return CudaArray(allocation, 0, tuple(shape), contiguous_strides(shape, dtype), dtype)

    def host_array(
        self, cls: type[Any], name: str, kind: Kind, shape: tuple[int, ...], dtype: np.dtype[Any], flags: int
    ) -> Any:
        """Page-locked memory as an array of `cls`, undefined or poisoned. DeviceError as of device_array."""
        nbytes = math.prod(shape) * dtype.itemsize
        self._admit(name)
        pinned_memory = cupy.cuda.pinned_memory
        memory = self._reserve(
            kind, name, nbytes, lambda: pinned_memory.PinnedMemoryPointer(pinned_memory.PinnedMemory(max(nbytes, 1), flags), 0)
        )
        host = np.frombuffer(memory, np.uint8, nbytes)
        pointer = int(memory.ptr)
        if kind == "mapped":
            with self._device.reports(f"address of mapped memory `{name}`"):
                pointer = int(runtime.pointerGetAttributes(memory.ptr).devicePointer)
        allocation = self._allocations[name] = CudaAllocation(self._device, name, kind, nbytes, pointer, memory, host)
        if self._device.poison:
            host.fill(0xFF if dtype.kind == "f" else 0xA5)
        return cls(allocation, 0, tuple(shape), contiguous_strides(shape, dtype), dtype, self._check_host_access)

    def release(self, allocation: CudaAllocation) -> None:
        """Give it back; its name is free again."""
        allocation.release()
        del self._allocations[allocation.name]

    def release_all(self, *, lost: bool = False) -> None:
        """lost: CUDA gives nothing back any more, so that what is held goes with the process."""
        for allocation in self._allocations.values():
            if lost:
                abandon(allocation.owner)
            allocation.release()
        self._allocations.clear()

    def held_bytes(self) -> dict[Kind, int]:
        """Bytes held at present, by kind of memory."""
        total: dict[Kind, int] = {"device": 0, "constant": 0, "pinned": 0, "mapped": 0}
        for allocation in self._allocations.values():
            total[allocation.kind] += allocation.nbytes
        return total

    def _admit(self, name: str) -> None:
        self._device.refuse_in_capture(f"allocation of `{name}`")
        if name in self._allocations:
            raise DeviceError(
                f"array name `{name}` is taken: graphs and reports know arrays by name; free the first or use another name"
            )

    def _reserve(self, kind: Kind, name: str, nbytes: int, allocate: Callable[[], Any]) -> Any:
        try:
            return allocate()
        except (runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError) as error:
            if getattr(error, "status", _OUT_OF_MEMORY) != _OUT_OF_MEMORY:
                raise DeviceError(f"{kind} memory `{name}` of {nbytes:,} bytes: {error}") from error
            where = no_room(self._device.name) if kind in ("device", "constant") else f"host memory is short; {REMEDY}"
            raise DeviceError(f"{kind} memory `{name}` of {nbytes:,} bytes does not fit: {where}") from error
