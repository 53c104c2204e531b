"""Arrays of a CUDA device: geometry over an address. Streams move the bytes; the host has `write` and `read`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from graphs.capture import Rows
from kernels.lang import cuda
from runtime.device_view import DeviceView
from runtime.errors import DeviceError
from runtime.virtual_memory import Index, Kind, as_storable

HostCheck: TypeAlias = "Callable[[CudaAllocation, str], None]"
"""(allocation, what): raises when the host must not touch the memory now."""

_A = TypeVar("_A", bound="CudaArray")


class CudaAllocation:
    """One block of memory. Views share it; freeing it ends them all.

    Attributes:
        pointer: the address that the device uses.
        owner: the CuPy object that frees the memory when it dies.
        host: its bytes as the host sees them (pinned and mapped), uint8.
    """

    __slots__ = ("device", "freed", "host", "kind", "name", "nbytes", "owner", "pointer")

    def __init__(
        self, device: object, name: str, kind: Kind, nbytes: int, pointer: int, owner: Any, host: npt.NDArray[np.uint8] | None
    ) -> None:
        self.device, self.name, self.kind, self.nbytes = device, name, kind, nbytes
        self.pointer, self.owner, self.host = pointer, owner, host
        self.freed = False

    def release(self) -> None:
        """Give the memory back."""
        self.freed, self.owner, self.host = True, None, None


class CudaArray(DeviceView):
    """Device memory, or a view of it. The host cannot look inside: copy to page-locked memory and wait, or device.download().

    Attributes:
        offset: of the view in its allocation, in bytes. strides: in bytes.
    """

    __slots__ = ("_numba", "allocation", "dtype", "offset", "shape", "strides")

    def __init__(
        self, allocation: CudaAllocation, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.allocation, self.offset, self.shape, self.strides, self.dtype = allocation, offset, shape, strides, dtype
        self._numba: Any = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def pointer(self) -> int:
        return self.allocation.pointer + self.offset

    @property
    def contiguous(self) -> bool:
        expected = self.dtype.itemsize
        for n, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and step != expected:
                return 0 in self.shape
            expected *= n
        return True

    @property
    def rows(self) -> Rows | None:
        """The view as rows of bytes, for copies and fills."""
        return Rows.of(self.pointer, self.shape, self.strides, self.dtype.itemsize)

    @property
    def numba(self) -> Any:
        """The view as kernels take it, made once. Contiguous views have C layout, which is what kernels are compiled for."""
        if self._numba is None:
            self._numba = cuda.from_cuda_array_interface(self.__cuda_array_interface__, owner=self.allocation)
        return self._numba

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None if self.contiguous else self.strides,
            "version": 3,
        }

    def __getitem__(self: _A, index: slice | tuple[slice, ...]) -> _A:
        """A view. Slices only, with steps of 1; bounds beyond the shape are cut to it, as in NumPy."""
        parts = self._slices(index)
        if len(parts) > len(self.shape):
            raise DeviceError(f"{self.name}[{index!r}]: {len(parts)} slices for an array of shape {self.shape}")
        shape, offset = list(self.shape), self.offset
        for axis, part in enumerate(parts):
            start, stop, _ = part.indices(shape[axis])
            shape[axis] = max(stop - start, 0)
            offset += start * self.strides[axis]
        return self._view(offset, tuple(shape), self.strides)

    def reshape(self: _A, shape: tuple[int, ...]) -> _A:
        """The same memory under another shape. DeviceError when the view is not contiguous or sizes differ."""
        if not self.contiguous:
            raise DeviceError(f"{self.name}: a view of shape {self.shape} that is not contiguous cannot be reshaped to {shape}")
        if math.prod(shape) != math.prod(self.shape) or min(shape, default=1) < 0:
            raise DeviceError(f"{self.name}: shape {self.shape} cannot become {shape}")
        return self._view(self.offset, shape, contiguous_strides(shape, self.dtype))

    def _view(self: _A, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> _A:
        return type(self)(self.allocation, offset, shape, strides, self.dtype)

    def __repr__(self) -> str:
        state = ", freed" if self.allocation.freed else ""
        return f"{type(self).__name__}({self.name}, {self.shape}, {self.dtype}, at {self.pointer:#x}{state})"


class CudaHostArray(CudaArray):
    """Page-locked memory: the host goes through `write` and `read`. Nothing checks that the device has finished: events do."""

    __slots__ = ("_check", "_values")

    def __init__(
        self,
        allocation: CudaAllocation,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        check: HostCheck,
    ) -> None:
        super().__init__(allocation, offset, shape, strides, dtype)
        self._check = check
        self._values: npt.NDArray[Any] = np.ndarray(shape, dtype, allocation.host, offset, strides)

    def _view(
        self: CudaHostArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> CudaHostArray:
        return type(self)(self.allocation, offset, shape, strides, self.dtype, self._check)

    def write(self, values: npt.ArrayLike, index: Index = ...) -> None:
        """self[index] = values, now, by the host.

        Raises:
            UseAfterFree: freed before.
            DeviceError: the values do not fit the dtype, or a stream is being captured (a replay would not repeat the write).
        """
        self._check(self.allocation, "write")
        self._values[index] = as_storable(self, values)

    def read(self, index: Index = ...) -> npt.NDArray[Any]:
        """A copy of self[index] as it is now. Errors as in `write`."""
        self._check(self.allocation, "read")
        return np.array(self._values[index])


class CudaPinnedArray(CudaHostArray):
    """Page-locked host memory: source and destination of asynchronous copies. Kernels do not see it."""

    __slots__ = ()


class CudaMappedArray(CudaHostArray):
    """One page-locked allocation that kernels read and write in place, over the bus where device and host have no common memory."""

    __slots__ = ()


def contiguous_strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Bytes between neighbours along each axis of a row-major array."""
    strides, step = [], dtype.itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
