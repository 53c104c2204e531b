"""PTX that was compiled before, by the content of all that it is made of: every kernel together takes two minutes of a core."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import tempfile
import time
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

TOOLS = ("numba", "llvmlite", "numpy", "nvidia-cuda-nvcc", "nvidia-nvvm", "cuda-toolkit", "cuda-core", "cuda-bindings")
"""Beginnings of the names of packages that have a say in what comes out."""

UNUSED_SECONDS = 30 * 24 * 3600.0

Compiled = dict[str, dict[str, str]]
"""By storage type {"ptx": text} or {"error": why there is none}."""


class PtxCache:
    """A file for each kernel and each content of its sources. One that failed to compile is not kept.

    Args:
        folder: of the files; made when there is something to keep. sources: the folder of the kernels.
    """

    def __init__(self, folder: Path, sources: Path) -> None:
        self._folder, self._sources = folder, sources

    def key(self, module: str, kernel: str, types: Any) -> str:
        """Of a kernel in `module` (without its package) with the argument types `types`, which spell themselves out in full."""
        digest = hashlib.sha256(f"{toolchain()} {kernel} {types}".encode())
        digest.update(Path(__file__).with_name("compile_ptx.py").read_bytes())
        for name in sorted(closure(self._sources, module)):
            digest.update(name.encode() + (self._sources / f"{name}.py").read_bytes())
        return digest.hexdigest()[:32]

    def get(self, key: str) -> Compiled | None:
        path = self._folder / f"{key}.json"
        try:
            held: Compiled = json.loads(path.read_text("utf-8"))
            os.utime(path)
        except (OSError, ValueError):
            return None
        return held

    def put(self, key: str, compiled: Compiled) -> None:
        """Keep it where that is possible, and let go of what nobody has used for a month."""
        if any("ptx" not in each for each in compiled.values()):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self._folder, suffix=".new", delete=False) as file:
                json.dump(compiled, file)
            os.replace(file.name, self._folder / f"{key}.json")
            for path in self._folder.iterdir():
                if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                    path.unlink()
        except OSError:
            return  # a full disk, or another process that was quicker: the next run compiles it again


@cache
def toolchain() -> str:
    """Versions of what compiles, and the settings of Numba that the environment holds."""
    versions = {f"{each.name}={each.version}" for each in distributions() if each.name.lower().replace("_", "-").startswith(TOOLS)}
    idle = ("NUMBA_ENABLE_CUDASIM", "NUMBA_CACHE_DIR")  # nothing is compiled to PTX under the simulator
    settings = {f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_") and name not in idle}
    return f"{sys.version} {sorted(versions)} {sorted(settings)}"


def closure(sources: Path, module: str) -> frozenset[str]:
    """`module` and every module of the kernels that it imports, directly or not, at its top or inside a function."""
    found: set[str] = set()
    waiting = [module, "__init__"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports(sources / f"{name}.py")
    return frozenset(found)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules of the package `kernels` that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("kernels.")]
        elif isinstance(node, ast.ImportFrom) and node.module == "kernels":
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("kernels."):
            names.append(node.module.split(".")[1])
    return tuple(names)
