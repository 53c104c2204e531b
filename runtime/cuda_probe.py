"""Can a CUDA device be opened here, and what is it? Everything is asked before memory is touched; CuPy is imported on demand."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

from kernels.lang import SIMULATED

MIN_COMPUTE_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16."""

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver


@dataclass(frozen=True)
class GpuFacts:
    """Of the first visible GPU.

    Attributes:
        driver: version of the driver package, e.g. 580.159.04; None where NVML is missing.
        driver_cuda, runtime_cuda: CUDA versions of the driver and of CuPy's runtime, as 1000 * major + 10 * minor.
        memory_bytes: all of its memory. multiprocessors: count.
    """

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    driver: str | None
    driver_cuda: int
    runtime_cuda: int

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return (
            f"{self.name}, compute capability {major}.{minor}, {self.memory_bytes / 2**30:.1f} GiB, driver "
            f"{self.driver or 'of unknown version'} (CUDA {cuda_version(self.driver_cuda)}), "
            f"CUDA runtime {cuda_version(self.runtime_cuda)}"
        )


def cuda_version(number: int) -> str:
    """13010 -> "13.1"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cuda_unavailable() -> str | None:
    """Why a CUDA device cannot be opened, with the remedy; None when it can. Touches no memory of the GPU."""
    try:
        import cupy
    except Exception as error:  # a package of another NumPy, Python or CUDA fails as it likes
        if isinstance(error, ImportError) and error.name == "cupy":
            return "CuPy is not installed; pip install draftgraph[cu12] or draftgraph[cu13]"
        return f"CuPy cannot be imported ({error}); install one of draftgraph[cu12] and draftgraph[cu13] anew"
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        return _no_devices(runtime, error)
    if not count:
        return "CuPy finds no GPU; check CUDA_VISIBLE_DEVICES"
    facts = gpu_facts()
    if facts.compute_capability < MIN_COMPUTE_CAPABILITY:
        needs = ".".join(map(str, MIN_COMPUTE_CAPABILITY))
        return f"compute capability of {facts.name} = {'.'.join(map(str, facts.compute_capability))}, {needs} (Ampere) is needed"
    if importlib.util.find_spec("nvmath") is None:
        return "nvmath-python is not installed; pip install draftgraph[cu12] or draftgraph[cu13]"
    if SIMULATED:
        return "NUMBA_ENABLE_CUDASIM = 1 turns kernels over to the simulator; unset it and start again"
    return None


def gpu_facts() -> GpuFacts:
    """Of the first visible GPU. Needs CuPy and a GPU."""
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(0)
    return GpuFacts(
        name=properties["name"].decode(),
        compute_capability=(properties["major"], properties["minor"]),
        memory_bytes=properties["totalGlobalMem"],
        multiprocessors=properties["multiProcessorCount"],
        driver=_driver_version(),
        driver_cuda=runtime.driverGetVersion(),
        runtime_cuda=runtime.runtimeGetVersion(),
    )


def _no_devices(runtime: Any, error: Any) -> str:
    driver, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver and error.status == _INSUFFICIENT_DRIVER:
        return (
            f"CuPy was built for CUDA {cuda_version(needed)} and the driver knows CUDA {cuda_version(driver)}; update the driver, "
            f"or pip install draftgraph[cu{driver // 1000}] in place of draftgraph[cu{needed // 1000}]"
        )
    return f"CuPy finds no usable GPU ({error}); check the driver with nvidia-smi"


def _driver_version() -> str | None:
    """Of the driver package, from NVML."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) != 0:
        return None
    return text.value.decode()
