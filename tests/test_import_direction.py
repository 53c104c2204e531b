"""kernels <- graphs <- runtime: what each package may import, read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"kernels", "graphs", "runtime", "tests"}
# What a module may import besides the standard library: the first pattern that fits its path says it. numba.cuda has one door,
# kernels/lang*.py; the NumPy meaning of a kernel is no kernel; CuPy and the CUDA bindings belong to the capture.
ALLOWED = {
    "kernels/lang*.py": {"kernels", "numba", "llvmlite", "numpy"},
    "kernels/oracle_*.py": {"kernels", "numpy"},
    "kernels/*.py": {"kernels"},
    "graphs/*_executor.py": {"kernels", "graphs", "numba", "numpy"},
    "graphs/simulator_block.py": {"numba", "numpy"},
    "graphs/compile_cache.py": {"kernels", "graphs", "numba", "numpy"},
    "graphs/cpu_matmul.py": {"graphs", "numba", "numpy", "threadpoolctl"},
    "graphs/capture.py": {"kernels", "graphs", "numpy", "cupy", "cuda"},
    "graphs/direct_launch.py": {"cuda"},
    "graphs/cublas.py": {"kernels", "graphs", "numpy", "cupy", "nvmath"},
    "graphs/cublas_lt.py": {"kernels", "graphs", "numpy", "nvmath"},
    "graphs/product_shape.py": {"kernels", "graphs", "numpy", "nvmath"},
    "graphs/*.py": {"kernels", "graphs", "numpy"},
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(source: str) -> Iterator[str]:
    """Full names of every module that `source` imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def offences(name: str, source: str) -> list[str]:
    """Packages that `source`, the module at path `name`, imports and may not."""
    roots = {module.partition(".")[0] for module in imports(source)} - set(sys.stdlib_module_names)
    if name.startswith("runtime/"):
        return sorted(roots & {"tests"})
    allowed = next(allowed for pattern, allowed in ALLOWED.items() if fnmatch(name, pattern))
    return sorted(roots - allowed)


@pytest.mark.parametrize("package", ["kernels", "graphs", "runtime"])
def test_imports_run_one_way(package: str) -> None:
    names = {path.relative_to(ROOT).as_posix(): path for path in modules(package)}
    found = {name: offences(name, path.read_text(encoding="utf-8")) for name, path in names.items()}
    assert {name: roots for name, roots in found.items() if roots} == {}


@pytest.mark.parametrize(
    ("package", "source", "offence"),
    [
        ("kernels", "from graphs.key import GraphKey", "graphs"),
        ("kernels", "from numba import cuda", "numba"),
        ("kernels", "def f():\n    import numpy", "numpy"),
        ("graphs", "import runtime.engine", "runtime"),
        ("graphs", "import cupy", "cupy"),
        ("runtime", "from tests.tiny_engine import drive", "tests"),
    ],
)
def test_an_offence_is_seen(package: str, source: str, offence: str) -> None:
    assert offences(f"{package}/somewhere.py", source) == [offence]


STAMPED = {"kernels/__init__.py", "graphs/__init__.py"}  # before what is behind them is imported: graphs/imported_sources.py


@pytest.mark.parametrize("package", ["kernels", "graphs", "runtime"])
def test_packages_are_empty_doors(package: str) -> None:
    for door in (ROOT / package).rglob("__init__.py"):
        assert door.relative_to(ROOT).as_posix() in STAMPED or door.read_text() == "", door


def test_doors_load_nothing_but_the_stamps() -> None:
    """Libraries that look for another package of the name `kernels` import ours to ask its version."""
    code = "import sys; before = set(sys.modules); import kernels, graphs, runtime; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "graphs",
        "kernels",
        "kernels.source_stamps",
        "runtime",
    }


def test_no_test_folder_shadows_a_package() -> None:
    """pytest puts the parent of a test package on sys.path: tests/kernels would be imported instead of kernels."""
    assert [name for name in OURS if (ROOT / "tests" / name).exists()] == []
