"""Print the extra that fits this machine's CUDA driver: cu13, cu12, or nothing where there is no driver."""

from __future__ import annotations

import ctypes


def driver_version() -> int:
    """CUDA version that the driver supports as 1000 * major + 10 * minor, 0 without a driver."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int(0)
    return version.value if libcuda.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0


if __name__ == "__main__":
    major = driver_version() // 1000
    print("cu13" if major >= 13 else "cu12" if major == 12 else "")
