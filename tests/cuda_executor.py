"""The `cuda` executor of kernel tests: NumPy arrays go to the GPU, the kernel runs, they come back."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from graphs.executor import Bound, KernelArgument
from graphs.launch import Grid
from kernels.lang import Kernel
from runtime.device import open_device

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice

_names = itertools.count()


@cache
def gpu() -> CudaDevice:
    """One device for all tests of a process. DeviceError where there is none."""
    device = open_device("cuda", poison=True)
    return device  # type: ignore[return-value]


class CudaExecutor:
    """Binds kernels to host arrays; two arguments that are one array are one array on the GPU too."""

    name = "cuda"

    def __init__(self) -> None:
        self._device = gpu()
        self._stream = self._device.stream("kernel tests")

    def bind(self, kernel: Kernel, grid: Grid, block: int, args: tuple[KernelArgument, ...]) -> Bound:
        def call() -> None:
            device, held = self._device, {id(arg): arg for arg in args if isinstance(arg, np.ndarray)}
            arrays = {key: device.array(f"argument {next(_names)}", arg.shape, arg.dtype) for key, arg in held.items()}
            try:
                for key, arg in held.items():
                    device.upload(arrays[key], arg)
                self._stream.launch(kernel, grid, block, *(arrays.get(id(arg), arg) for arg in args))  # type: ignore[arg-type]
                for key, arg in held.items():
                    arg[...] = device.download(arrays[key])
            finally:
                for array in arrays.values():
                    device.free(array)

        return call
