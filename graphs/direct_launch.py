"""One kernel launch with its arguments packed once, straight to the driver. Imported on machines with CUDA's bindings alone.

Numba's own way to a launch packs the arguments anew each time, and knows neither launches that overlap nor clusters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

from cuda.bindings import driver

Word: TypeAlias = "ctypes.c_int64 | ctypes.c_int32 | ctypes.c_float"


class DriverError(Exception):
    """A call of the driver did not succeed."""


def array_words(pointer: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> list[Word]:
    """An array as Numba's kernels take it: no owner, its size, its place, shape and strides in bytes."""
    size = 1
    for n in shape:
        size *= n
    return [ctypes.c_int64(word) for word in (0, 0, size, itemsize, pointer, *shape, *strides)]


class DirectLaunch:
    """A launch, ready to be issued any number of times.

    Args:
        function: handle of the loaded kernel.
        grid, block: as CUDA counts them, clusters multiplied out.
        words: the arguments.
        cluster: blocks of a cluster, along the first axis; 1 = no clusters.
        stream: pointer of the stream.
    """

    def __init__(
        self, function: int, grid: tuple[int, int, int], block: int, words: Sequence[Word], cluster: int, stream: int
    ) -> None:
        self._function = driver.CUfunction(function)
        self._words = tuple(words)
        self._pointers = (ctypes.c_void_p * len(self._words))(*(ctypes.addressof(word) for word in self._words))
        self._address = ctypes.addressof(self._pointers)
        self._configs = [_config(grid, block, cluster, stream, overlap=overlap) for overlap in (False, True)]

    def issue(self, *, overlap: bool) -> None:
        """Queue it; with `overlap` it may start while the kernel before it in the stream still runs.

        Raises:
            DriverError: CUDA refused it.
        """
        (status,) = driver.cuLaunchKernelEx(self._configs[overlap], self._function, self._address, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"cuLaunchKernelEx: {status.name}")


def _config(grid: tuple[int, int, int], block: int, cluster: int, stream: int, *, overlap: bool) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = 0
    config.hStream = driver.CUstream(stream)
    attributes = []
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        attributes.append(attribute)
    if overlap:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config
