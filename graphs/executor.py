"""How a launch becomes a call on a machine without a GPU: bind a kernel to NumPy arrays, get back a function of no arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from graphs import cpu_matmul
from graphs.launch import Grid
from kernels.lang import Kernel, source_of

Bound: TypeAlias = "Callable[[], None]"
KernelArgument: TypeAlias = "npt.NDArray[Any] | np.int32 | np.float32"


class Executor(Protocol):
    """Turns launches into calls. Two exist: graphs/cpu_executor.py and graphs/simulator_executor.py."""

    name: str

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        """A call that runs `kernel` over `args` to its end. Compiles the kernel now, not at the call."""
        ...


def twin(source: FunctionType, cuda: Any, inner: Callable[[FunctionType], Any]) -> FunctionType:
    """A copy of a kernel or device function that finds `cuda` under that name, and inner(source) for a device function it calls."""
    namespace = dict(source.__globals__)
    namespace["cuda"] = cuda
    for name in source.__code__.co_names:
        called = source_of(namespace.get(name))
        if called is not None:
            namespace[name] = inner(called)
    copy = FunctionType(source.__code__, namespace, source.__name__, source.__defaults__, source.__closure__)
    # Numba names what it keeps after module and qualified name: both must be the source's own.
    copy.__module__, copy.__qualname__ = source.__module__, source.__qualname__
    return copy


def widened(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A float32 copy of an array in a storage type (kernels/lang_storage.py): uint16 are the bits of bfloat16. Exact."""
    if array.dtype != np.uint16:
        return array.astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """float32 in a storage type, rounded to nearest even."""
    if dtype != np.uint16:
        return values.astype(dtype)
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def bind_matmul(
    out: npt.NDArray[Any],
    x: npt.NDArray[Any],
    weight: npt.NDArray[Any],
    rows: npt.NDArray[np.int32],
) -> Bound:
    """A call that computes out[:rows[0]] = x[:rows[0]] @ weight.T (graphs/cpu_matmul.py). Pads cost nothing and stay as they are.

    16-bit types are widened and sums are float32, as a GPU does it; the weights at each call, since they may not have been written.
    """
    capacity = x.shape[0]
    wide = out.dtype == x.dtype == weight.dtype == np.float32
    if wide:
        cpu_matmul.prepare(out, x, weight)

    def call() -> None:
        live = int(rows[0])
        if not 0 <= live <= capacity:
            raise ValueError(f"matmul: rows = {live} outside 0..{capacity}, the rows of its input")
        if live and wide:
            cpu_matmul.multiply(out[:live], x[:live], weight)
        elif live:
            out[:live] = narrowed(np.matmul(widened(x[:live]), widened(weight).T), out.dtype)

    return call
