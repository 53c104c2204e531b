"""One kernel launch with its arguments packed once, straight to the driver. Imported on machines with CUDA's bindings alone.

Numba's own way to a launch packs the arguments anew each time, and knows neither launches that overlap nor clusters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

from cuda.bindings import driver

_SHARED_STEP = 128
"""Shared memory is given out in so many bytes."""

Word: TypeAlias = "ctypes.c_int64 | ctypes.c_int32 | ctypes.c_float"


class DriverError(Exception):
    """A call of the driver did not succeed."""


def array_words(pointer: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> list[Word]:
    """An array as Numba's kernels take it: no owner, its size, its place, shape and strides in bytes."""
    size = 1
    for n in shape:
        size *= n
    return [ctypes.c_int64(word) for word in (0, 0, size, itemsize, pointer, *shape, *strides)]


def function_of(handle: Any) -> int:
    """The function behind what Numba keeps of a loaded kernel. Newer versions keep a CUkernel, of which the driver answers and sets
    nothing that belongs to a context.

    Raises:
        DriverError: the handle is of no kernel.
    """
    return int(_checked(driver.cuKernelGetFunction(handle)) if isinstance(handle, driver.CUkernel) else handle)


def even_share(function: int, blocks: int) -> int:
    """Bytes of dynamic shared memory, which nobody reads, with which a multiprocessor has room for no more than an even share of so
    many blocks of a kernel. 0 where its own demands see to that, or the share is of small blocks.

    Raises:
        DriverError: CUDA refused a question.
    """
    handle, device = driver.CUfunction(function), _checked(driver.cuCtxGetDevice())
    facts = driver.CUdevice_attribute
    processors, most, of_a_block, system = (
        int(_checked(driver.cuDeviceGetAttribute(fact, device)))
        for fact in (
            facts.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            facts.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            facts.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            facts.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
        )
    )
    static = int(_checked(driver.cuFuncGetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle)))
    share = -(-blocks // processors)
    idle = min(most // share - system, of_a_block) - static
    idle -= idle % _SHARED_STEP
    if idle <= 0:
        return 0
    largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(handle, largest, of_a_block - static))
    return idle


def allow_shared(function: int, size: int) -> None:
    """Let launches of a kernel have so many bytes of dynamic shared memory.

    Raises:
        DriverError: a block of this GPU has less.
    """
    largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(driver.CUfunction(function), largest, size))


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"{status.name}")
    return values[0] if values else None


class DirectLaunch:
    """A launch, ready to be issued any number of times.

    Args:
        function: handle of the loaded kernel.
        grid, block: as CUDA counts them, clusters multiplied out.
        words: the arguments.
        cluster: blocks of a cluster, along the first axis; 1 = no clusters.
        stream: pointer of the stream.
        shared: bytes of dynamic shared memory.
    """

    def __init__(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: int,
        words: Sequence[Word],
        cluster: int,
        stream: int,
        shared: int = 0,
    ) -> None:
        self._function = driver.CUfunction(function)
        self._words = tuple(words)
        self._pointers = (ctypes.c_void_p * len(self._words))(*(ctypes.addressof(word) for word in self._words))
        self._address = ctypes.addressof(self._pointers)
        self._configs = [_config(grid, block, cluster, stream, shared, overlap=overlap) for overlap in (False, True)]

    def issue(self, *, overlap: bool) -> None:
        """Queue it; with `overlap` it may start while the kernel before it in the stream still runs.

        Raises:
            DriverError: CUDA refused it.
        """
        (status,) = driver.cuLaunchKernelEx(self._configs[overlap], self._function, self._address, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"cuLaunchKernelEx: {status.name}")


def _config(grid: tuple[int, int, int], block: int, cluster: int, stream: int, shared: int, *, overlap: bool) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = shared
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
