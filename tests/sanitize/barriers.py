"""Sources without barriers: the same program with a race in kernels that share memory, so that the check can be seen to fail."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "graphs", "runtime", "tests")
_BARRIER = re.compile(r"\bcuda\.syncthreads\(\)")


def tree_without_barriers(folder: Path) -> int:
    """Copy the sources to `folder`, every barrier of a block out of them. Returns how many there were."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    removed = 0
    for path in sorted((folder / "kernels").glob("*.py")):
        source, count = _BARRIER.subn("pass", path.read_text(encoding="utf-8"))
        if count:
            path.write_text(source, encoding="utf-8")
            removed += count
    return removed
