"""Compile every kernel to PTX on a machine without a CUDA driver: `python -m tests.compile_ptx [NAME...]` prints JSON.

A process of its own, because Numba must not have been imported as the simulator. It needs libnvvm and libdevice alone (the
extra `ptx`, or either of cu12 and cu13). On the way numba-cuda asks for a device and for NVRTC, only to learn which
architectures they know: those questions are answered here.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numba import cuda
from numba.cuda import compiler, cuda_paths, dispatcher
from numba.cuda.core.errors import NumbaError
from numba.cuda.cudadrv import nvrtc

import kernels
from kernels.lang import Kernel
from runtime.checkpoint.cache import cache_folder
from tests.kernel_signatures import SIGNATURES, numba_types, storages_of
from tests.ptx_cache import PtxCache

SM_90 = (9, 0)
CACHE = PtxCache(cache_folder() / "ptx", Path(kernels.__path__[0]))


def kernels_of_folder() -> list[Kernel]:
    """Every kernel of kernels/."""
    found = []
    for path in sorted(Path(kernels.__path__[0]).glob("*.py")):
        if path.stem == "__init__":
            continue
        module = importlib.import_module(f"kernels.{path.stem}")
        found += [k for k in vars(module).values() if isinstance(k, Kernel) and k.py_func.__module__ == module.__name__]
    return found


def compile_kernel(kernel: Kernel) -> dict[str, dict[str, str]]:
    """By storage type {"ptx": text} or {"error": why there is none}: a kernel that does not compile must not hide the others."""
    if kernel.name not in SIGNATURES:
        return {"float32": {"error": f"{kernel.name} has no entry in tests/kernel_signatures.py"}}
    signature = SIGNATURES[kernel.name]
    types = {storage: numba_types(signature, storage) for storage in storages_of(signature)}
    key = CACHE.key(kernel.py_func.__module__.removeprefix("kernels."), kernel.name, types)
    compiled = CACHE.get(key)
    if compiled is None:
        compiled = {storage: compile_types(kernel, each) for storage, each in types.items()}
        CACHE.put(key, compiled)
    return compiled


def compile_types(kernel: Kernel, types: tuple[Any, ...]) -> dict[str, str]:
    try:
        return {"ptx": cuda.compile_ptx(kernel.py_func, types, cc=(*SM_90, "a"))[0]}
    except (NumbaError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Print one JSON object, by kernel name and storage type, of the kernels named on the command line, or of all."""
    gc.set_threshold(100_000, 20, 100)  # as in tests/conftest.py
    device = SimpleNamespace(compute_capability=SM_90)
    compiler.get_current_device = dispatcher.get_current_device = cuda.get_current_device = lambda: device
    nvrtc.get_supported_ccs = lambda: [SM_90]
    cuda_paths._get_nvrtc_path = lambda: None
    names = sys.argv[1:]
    print(json.dumps({kernel.name: compile_kernel(kernel) for kernel in kernels_of_folder() if not names or kernel.name in names}))


if __name__ == "__main__":
    main()
