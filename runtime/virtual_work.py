"""One launch, matrix product, copy or fill, bound to its arrays: what a virtual stream queues and a virtual graph replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphs.executor import Executor, KernelArgument, bind_matmul
from graphs.launch import Array, Grid
from kernels.lang import Kernel
from runtime.device_counters import COPY_KINDS, CopyKind
from runtime.errors import DeviceError
from runtime.race_detector import Access
from runtime.virtual_memory import Allocation, PinnedArray, VirtualArray
from runtime.work_checks import (
    check_copy,
    check_fill,
    check_launch,
    check_product,
    check_usable,
    refuse_stored_scalar,
    scalar_argument,
)


@dataclass(frozen=True, slots=True)
class Work:
    """Attributes:
    label: for reports.
    call: does it.
    accesses: the bytes it touches, constants left out.
    allocations: everything it uses, constants included.
    copy: kind and bytes when it is a copy.
    landing: the page-locked destination of a copy from the device, filled with poison until the copy has run.
    """

    label: str
    call: Callable[[], None]
    accesses: tuple[Access, ...]
    allocations: tuple[Allocation, ...]
    copy: tuple[CopyKind, int] | None = None
    landing: VirtualArray | None = None


def bind_launch(
    device: object, executor: Executor, kernel: Kernel, grid: Grid, block: int, args: tuple[Array | int | float, ...]
) -> Work:
    """Bind a kernel. Compiles it if this signature is new.

    Raises:
        DeviceError: wrong number or type of arguments, an integer outside int32, an empty grid, a block beyond MAX_THREADS,
            a store to a constant, page-locked memory as an argument.
    """
    check_launch(kernel, grid, block, args)
    bound: list[KernelArgument] = []
    reads: list[VirtualArray] = []
    writes: list[VirtualArray] = []
    for param, arg in zip(kernel.params, args, strict=True):
        what = f"{kernel.name}({param})"
        if isinstance(arg, VirtualArray):
            if isinstance(arg, PinnedArray):
                raise DeviceError(f"{what}: kernels do not see pinned memory `{arg.name}`; copy it to the device or use mapped()")
            _usable(device, what, arg, writes=param in kernel.writes)
            (writes if param in kernel.writes else reads).append(arg)
            bound.append(arg.values)
        elif param in kernel.writes:
            refuse_stored_scalar(what, arg)
        else:
            bound.append(scalar_argument(what, arg))
    accesses, allocations = _footprint(reads, writes)
    return Work(f"launch {kernel.name}", executor.bind(kernel, grid, block, tuple(bound)), accesses, allocations)


def bind_product(device: object, out: Array, x: Array, weight: Array, rows: Array) -> Work:
    """Bind out[i] = x[i] @ weight.T for i < rows[0]. DeviceError when the shapes do not fit."""
    out = _usable(device, "matmul(out)", out, writes=True)
    x = _usable(device, "matmul(x)", x)
    weight = _usable(device, "matmul(weight)", weight)
    rows = _usable(device, "matmul(rows)", rows)
    check_product(out, x, weight, rows)
    accesses, allocations = _footprint((x, weight, rows), (out,))
    call = bind_matmul(out.values, x.values, weight.values, rows.values)
    return Work(f"matmul {weight.name} -> {out.name}", call, accesses, allocations)


def bind_copy(device: object, dst: Array, src: Array) -> Work:
    """Bind dst[...] = src. DeviceError when shape or dtype differ or an end is pageable memory."""
    dst, src = _usable(device, "copy(dst)", dst, writes=True), _usable(device, "copy(src)", src)
    what = f"copy {src.name} -> {dst.name}"
    check_copy(dst, src)
    kind = COPY_KINDS[isinstance(src, PinnedArray), isinstance(dst, PinnedArray)]
    target, source = dst.values, src.values

    def call() -> None:
        target[...] = source

    accesses, allocations = _footprint((src,), (dst,))
    return Work(what, call, accesses, allocations, (kind, dst.nbytes), dst if kind == "d2h" else None)


def bind_fill(device: object, dst: Array, value: int | float) -> Work:
    """Bind dst[...] = value. DeviceError when the value does not fit the dtype."""
    dst = _usable(device, "fill(dst)", dst, writes=True)
    check_fill(dst, value)
    target = dst.values

    def call() -> None:
        target.fill(value)

    accesses, allocations = _footprint((), (dst,))
    return Work(f"fill {dst.name}", call, accesses, allocations)


def _usable(device: object, what: str, array: object, *, writes: bool = False) -> VirtualArray:
    return check_usable(VirtualArray, device, what, array, writes=writes)


def _footprint(
    reads: tuple[VirtualArray, ...] | list[VirtualArray], writes: tuple[VirtualArray, ...] | list[VirtualArray]
) -> tuple[tuple[Access, ...], tuple[Allocation, ...]]:
    accesses = [Access(array.allocation, array.start, array.stop, True) for array in writes]
    accesses += [Access(array.allocation, array.start, array.stop, False) for array in reads if array.allocation.kind != "constant"]
    return tuple(accesses), tuple({array.allocation: None for array in (*writes, *reads)})
