"""What every device refuses before it takes work: rules of launches, products, copies and fills, with the text of each error."""

from __future__ import annotations

import math
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from graphs.launch import Array, Grid
from kernels.lang import MAX_THREADS, Kernel
from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree


class _Allocated(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def allocation(self) -> Any: ...


A = TypeVar("A", bound=_Allocated)
_INT32 = np.iinfo(np.int32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def check_launch(kernel: Kernel, grid: Grid, block: int, args: tuple[Any, ...]) -> None:
    """DeviceError: no kernel, wrong number of arguments, an empty grid, or a block beyond MAX_THREADS."""
    if not isinstance(kernel, Kernel):
        raise DeviceError(f"launch of {kernel!r}: not declared with kernels.lang.kernel")
    if len(args) != len(kernel.params):
        raise DeviceError(f"{kernel.name} takes {len(kernel.params)} arguments {kernel.params}, got {len(args)}")
    if not 1 <= block <= MAX_THREADS:
        raise DeviceError(f"{kernel.name}: block = {block}, outside 1..{MAX_THREADS}")
    if min(grid if isinstance(grid, tuple) else (grid,)) < 1:
        raise DeviceError(f"{kernel.name}: grid = {grid} is empty; bound the rows by a live count on the device instead")


def refuse_stored_scalar(what: str, arg: object) -> NoReturn:
    """DeviceError for a scalar where the kernel stores. `what` names kernel and parameter."""
    raise DeviceError(f"{what} is stored to and must be an array, got {arg!r}")


def scalar_argument(what: str, value: object) -> np.int32 | np.float32:
    """int -> int32, float -> float32. DeviceError when the value does not fit, or is neither."""
    if isinstance(value, (int, np.integer)):
        if not _INT32.min <= value <= _INT32.max:
            raise DeviceError(f"{what} = {value}, outside int32")
        return np.int32(value)
    if isinstance(value, (float, np.floating)):
        if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
            raise DeviceError(f"{what} = {value}, outside float32")
        return np.float32(value)
    raise DeviceError(f"{what} = {value!r}: arguments are arrays of this device, ints or floats")


def check_product(out: Array, x: Array, weight: Array, rows: Array) -> None:
    """DeviceError when the shapes do not fit out [T, n_out] = x [T, n_in] @ weight [n_out, n_in].T, or rows is not int32 [1]."""
    if not (
        len(out.shape) == len(x.shape) == len(weight.shape) == 2
        and out.shape == (x.shape[0], weight.shape[0])
        and x.shape[1] == weight.shape[1]
    ):
        raise DeviceError(
            f"matmul: out {out.name} {out.shape}, x {x.name} {x.shape}, weight {weight.name} {weight.shape} do not fit "
            "[T, n_out] = [T, n_in] x [n_out, n_in]"
        )
    if rows.shape != (1,) or rows.dtype != np.int32:
        raise DeviceError(f"matmul: rows {rows.name} is {rows.dtype} {rows.shape}, needs int32 (1,)")


def check_copy(dst: Array, src: Array) -> None:
    """DeviceError when shape or dtype differ."""
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise DeviceError(f"copy {src.name} -> {dst.name}: {src.dtype} {src.shape} does not fit {dst.dtype} {dst.shape}")


def check_usable(kind: type[A], device: object, what: str, array: object, *, writes: bool) -> A:
    """An array that work on `device` may touch. DeviceError: it is none, another device's, or a constant that the work writes;
    UseAfterFree."""
    if not isinstance(array, kind):
        raise DeviceError(f"{what}: {type(array).__name__} is no array of this device; host memory must come from device.pinned()")
    allocation = array.allocation
    if allocation.device is not device:
        raise DeviceError(f"{what}: `{array.name}` belongs to another device")
    if allocation.freed:
        raise UseAfterFree(f"{what}: `{array.name}` was freed")
    if writes and allocation.kind == "constant":
        raise DeviceError(f"{what}: `{array.name}` is a constant and cannot be written")
    return array


def check_fill(dst: Array, value: int | float) -> None:
    """DeviceError when the value does not fit the dtype."""
    if dst.dtype.kind in "iu":
        bounds = np.iinfo(dst.dtype)
        if not isinstance(value, (int, np.integer)) or not bounds.min <= value <= bounds.max:
            raise DeviceError(f"fill {dst.name}: value = {value!r} does not fit {dst.dtype}")
