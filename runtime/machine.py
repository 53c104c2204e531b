"""What a measurement ran on: machine, versions, clocks and the commit, for the record that is kept of it."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "numba", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x", "nvmath-python", "cupti-python")
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide how fast a step is, where they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Name and count of this machine's processors, as this process may use them."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {usable} usable"


def gpu_clocks() -> dict[str, int] | None:
    """Present clocks of the first visible GPU in MHz and its power draw in watts, from NVML; None where it is missing."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    handle, value = ctypes.c_void_p(), ctypes.c_uint()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    index = int(visible) if visible.isdecimal() else 0
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None
    found = {}
    for name, clock in (("sm_mhz", _SM_CLOCK), ("memory_mhz", _MEMORY_CLOCK)):
        if nvml.nvmlDeviceGetClockInfo(handle, clock, ctypes.byref(value)) == 0:
            found[name] = value.value
    if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(value)) == 0:
        found["power_w"] = value.value // 1000
    return found


def commit() -> str | None:
    """The commit of these sources, with `+` where files differ from it; None without git or outside a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def portable(value: Any) -> Any:
    """The same value without paths of this machine: below the repository's root they begin there, others are the file's name."""
    if isinstance(value, Mapping):
        return {key: portable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [portable(entry) for entry in value]
    if not isinstance(value, str):
        return value
    key, equals, path = value.rpartition("=")
    if not path.startswith("/"):
        return value
    inside = Path(path).is_relative_to(ROOT)
    return key + equals + (Path(path).relative_to(ROOT).as_posix() if inside else Path(path).name)


def describe(engine: Any) -> dict[str, Any]:
    """Device, model and arm of an open engine, versions, clocks and commit; no paths of this machine."""
    info = engine.info()
    return {
        "device": info["device"],
        "processor": processor(),
        "clocks": gpu_clocks() if engine.runner.device.has_clock else None,
        "model": {name: portable(info["model"][name]) for name in ("source", "dtype", "layers", "hidden_size", "vocab_size")},
        "speculator": portable(info["speculator"]),
        "runner": info["runner"],
        "graphs": info["graphs"]["mode"],
        "versions": versions(),
        "commit": commit(),
    }
