"""One launch, matrix product, copy or fill, checked and bound to a CUDA stream: issued at once, or later inside a capture."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs import cublas
from graphs.capture import copy_async, fill_async
from graphs.direct_launch import DirectLaunch, DriverError, Word, allow_shared, array_words, even_share
from graphs.launch import Array, Grid
from kernels.lang import Kernel, float32, int32
from kernels.lang_overlap import HOPPER
from runtime.cuda_memory import CudaAllocation, CudaArray, CudaPinnedArray
from runtime.device_counters import COPY_KINDS, CopyKind
from runtime.early_start import may_start_early
from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree
from runtime.work_checks import (
    check_copy,
    check_fill,
    check_launch,
    check_product,
    check_usable,
    refuse_stored_scalar,
    scalar_argument,
)

if TYPE_CHECKING:
    from runtime.cuda_stream import CudaStream


@dataclass(frozen=True, slots=True)
class CudaWork:
    """Attributes:
    label: for reports.
    issue: queues it on the stream that it was bound to.
    reads, writes: the arrays it only reads, and those it stores to.
    copy: kind and bytes when it is a copy.
    computes: it is a kernel, or a product: what comes next may overlap it.
    overlapping: queues it so that it may start before the work before it has ended; None: it must not.
    early: arrays that it then reads before it waits for that work.
    """

    label: str
    issue: Callable[[], object]
    reads: tuple[CudaAllocation, ...]
    writes: tuple[CudaAllocation, ...]
    copy: tuple[CopyKind, int] | None = None
    computes: bool = False
    overlapping: Callable[[], object] | None = None
    early: frozenset[CudaAllocation] = frozenset()

    def refuse_freed(self) -> None:
        """UseAfterFree: an array of it was freed since it was bound."""
        for allocation in (*self.reads, *self.writes):
            if allocation.freed:
                raise UseAfterFree(f"{self.label}: `{allocation.name}` was freed")

    def issue_after(self, before: Sequence[CudaWork]) -> None:
        """Queue it behind `before`, the work that directly precedes it on its stream: see may_start_early."""
        (self._early_issue(before) or self.issue)()

    def starts_early(self, before: Sequence[CudaWork]) -> bool:
        """Queued behind `before`, may it start before that has ended?"""
        return self._early_issue(before) is not None

    def _early_issue(self, before: Sequence[CudaWork]) -> Callable[[], object] | None:
        return self.overlapping if self.overlapping is not None and may_start_early(self.early, before) else None


def bind_launch(stream: CudaStream, kernel: Kernel, grid: Grid, block: int, args: tuple[Array | int | float, ...]) -> CudaWork:
    """Bind a kernel. Compiles and loads it if these types are new, so that a capture never compiles.

    Raises:
        DeviceError: wrong number or type of arguments, an integer outside int32, an empty grid, a block beyond MAX_THREADS,
            a store to a constant, page-locked memory as an argument, a kernel that does not compile.
    """
    check_launch(kernel, grid, block, args)
    words: list[Word] = []
    types: list[Any] = []
    reads: list[CudaAllocation] = []
    writes: list[CudaAllocation] = []
    early: list[CudaAllocation] = []
    for param, arg in zip(kernel.params, args, strict=True):
        if isinstance(arg, CudaArray):
            what = f"{kernel.name}({param})"
            stored = param in kernel.writes
            if isinstance(arg, CudaPinnedArray):
                raise DeviceError(f"{what}: kernels do not see pinned memory `{arg.name}`; copy it to the device or use mapped()")
            _usable(stream, what, arg, writes=stored)
            (writes if stored else reads).append(arg.allocation)
            if param in kernel.early:
                early.append(arg.allocation)
            words += array_words(arg.pointer, arg.shape, arg.strides, arg.dtype.itemsize)
            types.append(arg.numba._numba_type_)
        elif param in kernel.writes:
            refuse_stored_scalar(f"{kernel.name}({param})", arg)
        else:
            value = scalar_argument(f"{kernel.name}({param})", arg)
            whole = isinstance(value, np.int32)
            words.append(ctypes.c_int32(int(value)) if whole else ctypes.c_float(float(value)))
            types.append(int32 if whole else float32)
    function, (x, y, z) = stream.device.compile(kernel, tuple(types), block), (*_axes(grid), 1, 1)[:3]
    hopper = stream.device.facts.compute_capability >= HOPPER
    cluster = kernel.cluster if hopper else 1
    can_overlap = kernel.overlap and stream.device.overlaps
    shared = kernel.shared if hopper else 0
    if shared:
        try:
            allow_shared(function, shared)
        except DriverError as error:
            raise DeviceError(
                f"kernel {kernel.name} needs {shared:,} bytes of shared memory in a block, which {stream.device.name} refuses "
                f"({error}); set device = cpu"
            ) from error
    elif kernel.spread and can_overlap:
        with stream.device.reports(f"room for {kernel.name}"):
            shared = even_share(function, x * cluster * y * z)
    launch = DirectLaunch(function, (x * cluster, y, z), block, words, cluster, stream.pointer, shared)
    return CudaWork(
        f"launch {kernel.name}",
        partial(launch.issue, overlap=False),
        tuple(reads),
        tuple(writes),
        computes=True,
        overlapping=partial(launch.issue, overlap=True) if can_overlap else None,
        early=frozenset(early),
    )


def bind_product(stream: CudaStream, out: Array, x: Array, weight: Array, rows: Array) -> CudaWork:
    """Bind out = x @ weight.T over every row of x: what the pads hold is computed too, and rows[0] is not looked at.

    Raises:
        DeviceError: shapes do not fit, dtypes that cuBLAS does not multiply, rows that are not contiguous.
    """
    out = _usable(stream, "matmul(out)", out, writes=True)
    x, weight = _usable(stream, "matmul(x)", x), _usable(stream, "matmul(weight)", weight)
    rows = _usable(stream, "matmul(rows)", rows)
    check_product(out, x, weight, rows)
    matrices = product_matrices(stream, out, x, weight)
    if not cublas.supported(*matrices):
        raise DeviceError(
            f"matmul: out {out.name} {out.dtype}, x {x.name} {x.dtype}, weight {weight.name} {weight.dtype}: x and weight must "
            "have one type of float32, float16 or bfloat16 (as uint16), and out the same or float32"
        )
    what, reads = f"matmul {weight.name} -> {out.name}", (x.allocation, weight.allocation, rows.allocation)
    issue: Callable[[], object] = _nothing
    if x.nbytes and out.nbytes:
        with stream.device.reports(f"preparing {what}"):
            issue = stream.cublas.product(*matrices)
            if stream.joined is not None:
                stream.cublas.warm_up(*matrices)
    return CudaWork(what, issue, reads, (out.allocation,), computes=issue is not _nothing)


def product_matrices(stream: CudaStream, out: Array, x: Array, weight: Array) -> tuple[cublas.Matrix, cublas.Matrix, cublas.Matrix]:
    """The three as cuBLAS takes them. DeviceError: rows that are not contiguous, arrays of another device."""
    known = {"out": out, "x": x, "weight": weight}
    of_out, of_x, of_weight = (_matrix(role, _usable(stream, f"matmul({role})", array)) for role, array in known.items())
    return of_out, of_x, of_weight


def bind_copy(stream: CudaStream, dst: Array, src: Array) -> CudaWork:
    """Bind dst[...] = src.

    Raises:
        DeviceError: shape or dtype differ, an end is pageable memory, or the views have no common pitch.
    """
    dst, src = _usable(stream, "copy(dst)", dst, writes=True), _usable(stream, "copy(src)", src)
    what = f"copy {src.name} -> {dst.name}"
    check_copy(dst, src)
    target, source = dst.rows, src.rows
    if target is None or source is None:
        raise DeviceError(f"{what}: views {dst.shape} with strides {dst.strides} and {src.strides} are no rows of one pitch")
    issue = copy_async(target, source, stream.pointer)
    if issue is None:
        raise DeviceError(f"{what}: rows of {source.width} and {target.width} bytes do not fit each other")
    kind = COPY_KINDS[isinstance(src, CudaPinnedArray), isinstance(dst, CudaPinnedArray)]
    return CudaWork(what, issue, (src.allocation,), (dst.allocation,), (kind, dst.nbytes))


def bind_fill(stream: CudaStream, dst: Array, value: int | float) -> CudaWork:
    """Bind dst[...] = value. DeviceError when the value does not fit the dtype, or no memset has its width."""
    dst = _usable(stream, "fill(dst)", dst, writes=True)
    check_fill(dst, value)
    target, dtype, pointer = dst.rows, dst.dtype, stream.pointer
    if target is None or dtype.itemsize > 4:
        raise DeviceError(f"fill {dst.name}: a view {dst.shape} of {dtype} with strides {dst.strides} cannot be filled")

    def issue() -> None:
        fill_async(target, value, dtype, pointer)

    return CudaWork(f"fill {dst.name}", issue, (), (dst.allocation,))


def _axes(grid: Grid) -> tuple[int, ...]:
    return (grid,) if isinstance(grid, int) else tuple(grid)


def _nothing() -> None:
    """A product without elements."""


def _matrix(role: str, array: CudaArray) -> cublas.Matrix:
    (rows, columns), (pitch, step), size = array.shape, array.strides, array.dtype.itemsize
    if columns > 1 and step != size:
        raise DeviceError(f"matmul({role}): rows of `{array.name}` {array.shape} are not contiguous (strides {array.strides})")
    return cublas.Matrix(array.pointer, rows, columns, max(pitch // size if rows > 1 else columns, columns), array.dtype)


def _usable(stream: CudaStream, what: str, array: object, *, writes: bool = False) -> CudaArray:
    return check_usable(CudaArray, stream.device, what, array, writes=writes)
