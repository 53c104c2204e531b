"""CudaCompiler: kernels compiled and loaded once for each set of argument types, and kept on disk between processes."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

import numba.core.config as numba_config

from graphs.compile_cache import forgiving, writable_cache_dir
from graphs.direct_launch import function_of
from kernels.lang import Kernel
from runtime.cuda_room import no_room, out_of_memory
from runtime.errors import DeviceError

logger = logging.getLogger(__name__)


class CudaCompiler:
    """Of one GPU, by its name in messages."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._compiled: dict[tuple[Kernel, tuple[Any, ...]], tuple[int, int]] = {}
        self._cached: set[Kernel] = set()
        # Grids of a decode step are small because the step is: Numba's advice to launch more blocks would come at every launch.
        numba_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

    def handle(self, kernel: Kernel, types: tuple[Any, ...], block: int) -> int:
        """Compile and load `kernel` for these argument types, once: the driver's handle of it.

        Raises DeviceError when it does not compile, or uses too many registers for `block` threads.
        """
        key = (kernel, types)
        if key not in self._compiled:
            self._keep_compiled(kernel)
            try:
                compiled = kernel.jit.compile(types)
                handle = function_of(compiled._codelibrary.get_cufunc().handle)
                self._compiled[key] = int(compiled.max_threads_per_block), handle
            except Exception as error:  # whatever the compiler, the linker or the driver makes of it
                if out_of_memory(error):
                    raise DeviceError(f"kernel {kernel.name} cannot be loaded for want of memory: {no_room(self._gpu)}") from error
                raise DeviceError(
                    f"kernel {kernel.name}({', '.join(map(str, types))}) does not compile for {self._gpu}: "
                    f"{type(error).__name__}: {error}; check that CuPy and numba-cuda come from one extra, cu12 or cu13, and that "
                    "the driver is no older"
                ) from error
        most, handle = self._compiled[key]
        if block > most:
            raise DeviceError(f"{kernel.name}: block = {block}, its registers allow {most} on {self._gpu}")
        return handle

    def _keep_compiled(self, kernel: Kernel) -> None:
        """Let Numba keep what it compiles on disk, in a folder of this set of sources: see graphs/cpu_executor.py."""
        if kernel in self._cached:
            return
        self._cached.add(kernel)
        folder = writable_cache_dir()
        if folder is None:
            return
        before = numba_config.CACHE_DIR
        numba_config.CACHE_DIR = str(folder / f"numba-cuda-{version('numba-cuda')}")
        try:
            kernel.jit.enable_caching()
            forgiving(kernel.jit)
        except RuntimeError as error:
            logger.debug("kernel %s is compiled anew by every process: %s", kernel.name, error)
        finally:
            numba_config.CACHE_DIR = before

