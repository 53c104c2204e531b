"""Arrays of the virtual device: NumPy memory that behaves as if host and device were apart.

Device memory refuses host access. Page-locked memory is touched by the host through `write` and `read`, which are checked against
queued work. Mapped memory is seen by kernels and by the host. Constants are read-only and leave no trace in the race detector.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from graphs.launch import Array
from runtime.device_view import DeviceView
from runtime.errors import DeviceError

Kind: TypeAlias = Literal["device", "constant", "pinned", "mapped"]
Index: TypeAlias = "int | slice | EllipsisType | npt.NDArray[Any] | tuple[int | slice | EllipsisType, ...]"
HostCheck: TypeAlias = "Callable[[Allocation, int, int, bool], None]"
"""(allocation, first byte, one past the last byte, writes): raises when the host must not touch these bytes now."""

_BASIC = (int, np.integer, slice, EllipsisType)
_A = TypeVar("_A", bound="VirtualArray")


class Allocation:
    """One block of memory. Views share it; freeing it ends them all."""

    __slots__ = ("address", "device", "freed", "kind", "name", "nbytes", "values")

    def __init__(self, device: object, name: str, kind: Kind, values: npt.NDArray[Any]) -> None:
        self.device, self.name, self.kind, self.values = device, name, kind, values
        self.nbytes = int(values.nbytes)
        self.address = _address(values)
        self.freed = False

    def poison(self) -> None:
        poison(self.values)


class VirtualArray(DeviceView):
    """Device memory, or a view of it. The host cannot look inside: copy to page-locked memory and wait, or device.download().

    Attributes:
        values: the NumPy view that kernels run on. For the virtual device only.
        start, stop: the bytes of the allocation that the view spans; a strided view spans what it skips as well.
    """

    __slots__ = ("allocation", "start", "stop", "values")

    def __init__(self, allocation: Allocation, values: npt.NDArray[Any]) -> None:
        self.allocation = allocation
        self.values = values
        if values.size:
            self.start = _address(values) - allocation.address
            last = sum((n - 1) * step for n, step in zip(values.shape, values.strides, strict=True))
            self.stop = self.start + last + values.itemsize
        else:
            self.start = self.stop = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def __getitem__(self: _A, index: slice | tuple[slice, ...]) -> _A:
        """A view. Slices only, with steps of 1; bounds beyond the shape are cut to it, as in NumPy."""
        return type(self)(self.allocation, self.values[self._slices(index)])

    def reshape(self: _A, shape: tuple[int, ...]) -> _A:
        """The same memory under another shape. DeviceError when the view is not contiguous or sizes differ."""
        if not self.values.flags.c_contiguous:
            raise DeviceError(f"{self.name}: a view of shape {self.shape} that is not contiguous cannot be reshaped to {shape}")
        try:
            values = self.values.reshape(shape)
        except ValueError as error:
            raise DeviceError(f"{self.name}: shape {self.shape} cannot become {shape}") from error
        return type(self)(self.allocation, values)

    def __repr__(self) -> str:
        state = ", freed" if self.allocation.freed else ""
        return f"{type(self).__name__}({self.name}, {self.shape}, {self.dtype}, bytes [{self.start}, {self.stop}){state})"


class HostVisibleArray(VirtualArray):
    """Memory that the host may touch, through `write` and `read` only: both are checked against queued work."""

    __slots__ = ("_check",)

    def __init__(self, allocation: Allocation, values: npt.NDArray[Any], check: HostCheck) -> None:
        super().__init__(allocation, values)
        self._check = check

    def __getitem__(self: HostVisibleArray, index: slice | tuple[slice, ...]) -> HostVisibleArray:
        view = VirtualArray(self.allocation, self.values)[index]
        return type(self)(self.allocation, view.values, self._check)

    def reshape(self: HostVisibleArray, shape: tuple[int, ...]) -> HostVisibleArray:
        view = VirtualArray(self.allocation, self.values).reshape(shape)
        return type(self)(self.allocation, view.values, self._check)

    def write(self, values: npt.ArrayLike, index: Index = ...) -> None:
        """self[index] = values, now, by the host.

        Raises:
            StaleStaging, Race: queued work may still read or write these bytes.
            DeviceError: the values do not fit the dtype, or the stream is being captured (a replay would not repeat the write).
        """
        target = self._target(index)
        self._check(self.allocation, target.start, target.stop, True)
        self.values[index] = as_storable(self, values)

    def read(self, index: Index = ...) -> npt.NDArray[Any]:
        """A copy of self[index] as it is now.

        Raises:
            Race: queued work may still write these bytes: wait for its event first.
            DeviceError: the stream is being captured.
        """
        target = self._target(index)
        self._check(self.allocation, target.start, target.stop, False)
        return np.array(self.values[index])

    def _target(self, index: Index) -> VirtualArray:
        """The bytes that `index` touches; all of them for an index array."""
        if index is ...:
            return self
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(part, _BASIC) for part in parts):
            return self
        # A trailing ellipsis turns an element into a view of no dimensions.
        view = self.values[index] if ... in parts else self.values[tuple([*parts, ...])]
        return VirtualArray(self.allocation, view)


class PinnedArray(HostVisibleArray):
    """Page-locked host memory: source and destination of asynchronous copies. Kernels do not see it."""

    __slots__ = ()


class MappedArray(HostVisibleArray):
    """One allocation seen by kernels and by the host, as on integrated devices."""

    __slots__ = ()


def as_storable(array: Array, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """`values` as an array that `array` can hold without losing any; DeviceError otherwise."""
    source, dtype = np.asarray(values), array.dtype
    if source.dtype == dtype:
        return source
    if source.dtype.kind in "iub" and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if source.size and (source.min() < bounds.min or source.max() > bounds.max):
            raise DeviceError(f"{array.name}: values {source.min()}..{source.max()} do not fit {dtype}")
    elif not np.can_cast(source.dtype, dtype, "same_kind"):
        raise DeviceError(f"{array.name}: {source.dtype} values written to {dtype} memory; convert them first")
    return source


def poison(values: npt.NDArray[Any]) -> None:
    """Fill with what nobody should ever read: NaN, or bytes of 0xA5."""
    if values.dtype.kind == "f":
        values.fill(np.nan)
    else:
        values.fill(np.frombuffer(b"\xa5" * values.itemsize, values.dtype)[0])


def _address(values: npt.NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])
