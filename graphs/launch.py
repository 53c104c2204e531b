"""What a recorder sees of a device: arrays with names, and a launcher that takes launches in order.

A recorder never learns whether it is being captured, run eagerly on a GPU, or queued on the virtual device of a CPU.
It allocates nothing and synchronises nothing.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from kernels.lang import Kernel

Grid: TypeAlias = "int | tuple[int, int] | tuple[int, int, int]"


@runtime_checkable
class Array(Protocol):
    """A named block of device memory, or a view of one. A view keeps the name of the array it was cut from."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Array: ...

    def reshape(self, shape: tuple[int, ...]) -> Array:
        """The same contiguous memory under another shape."""
        ...


class Event(Protocol):
    """A point in a stream. Waiting on an event that was never recorded is an error: nothing would order it."""

    @property
    def name(self) -> str: ...

    def synchronize(self) -> None:
        """Block the host until the recorded point has been reached."""
        ...

    def query(self) -> bool:
        """Has the recorded point been reached?"""
        ...


class Launcher(Protocol):
    """An ordered sink of device work: a CUDA stream, a stream under capture, or a queue of the virtual device."""

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        """Queue one kernel. Python ints become int32, floats float32. `block` is at most kernels.lang.MAX_THREADS."""
        ...

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        """Queue out[i] = x[i] @ weight.T for i < rows[0].

        out [T, n_out], x [T, n_in], weight [n_out, n_in]; rows int32 [1] in device memory, at most T. Rows from rows[0] on are
        left undefined: a CPU skips them, a captured cuBLAS call computes them from whatever the pads hold.
        """
        ...

    def copy(self, dst: Array, src: Array) -> None:
        """Queue dst[...] = src. Same shape and dtype; host memory at either end must be page-locked."""
        ...

    def fill(self, dst: Array, value: int | float) -> None:
        """Queue dst[...] = value."""
        ...

    def record(self, event: Any) -> None:
        """Record `event` at the present end of this stream."""
        ...

    def wait(self, event: Any) -> None:
        """Let everything queued later on this stream run after `event`. The host does not wait."""
        ...

    def fork(self) -> Launcher:
        """Where work goes that may run beside what is queued here from now on, behind what was queued before; until `join`.

        This launcher itself where there is nothing beside it.
        """
        ...

    def join(self, beside: Launcher) -> None:
        """Let everything queued later on this stream run after what went to `beside`, which `fork` returned."""
        ...
