"""How a launch becomes a call on a machine without a GPU: bind a kernel to NumPy arrays, get back a function of no arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from graphs.launch import Grid
from kernels.lang import Kernel

Bound: TypeAlias = "Callable[[], None]"
KernelArgument: TypeAlias = "npt.NDArray[Any] | np.int32 | np.float32"


class Executor(Protocol):
    """Turns launches into calls. Two exist: graphs/cpu_executor.py and graphs/simulator_executor.py."""

    name: str

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        """A call that runs `kernel` over `args` to its end. Compiles the kernel now, not at the call."""
        ...


def bind_matmul(
    out: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int32],
) -> Bound:
    """A call that computes out[:rows[0]] = x[:rows[0]] @ weight.T with BLAS. Pad rows cost nothing and stay as they are."""
    transposed = weight.T
    capacity = x.shape[0]

    def call() -> None:
        live = int(rows[0])
        if not 0 <= live <= capacity:
            raise ValueError(f"matmul: rows = {live} outside 0..{capacity}, the rows of its input")
        if live:
            np.matmul(x[:live], transposed, out=out[:live])

    return call
