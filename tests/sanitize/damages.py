"""Races planted in copies of the sources, a barrier less in each, so that the check can be seen to fail."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "graphs", "runtime", "tests")


@dataclass(frozen=True)
class Damage:
    """kernel: whose race it is. file: below the repository, in which `old` stands once. new: in its place."""

    kernel: str
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.kernel} less a barrier of {self.file}"

    def damaged(self) -> str:
        """The text of its file. Raises ValueError: the text to replace is not there once."""
        source = (ROOT / self.file).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file}: the text to damage occurs {source.count(self.old)} times:\n{self.old}")
        return source.replace(self.old, self.new)

    def copy_to(self, folder: Path) -> None:
        """Copy the sources there, damaged. Raises what `damaged` raises."""
        damaged = self.damaged()
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        shutil.copy2(ROOT / "pyproject.toml", folder)
        (folder / self.file).write_text(damaged, encoding="utf-8")


def _without(kernel: str, file: str, before: str, barrier: str = "cuda.syncthreads()", after: str = "") -> Damage:
    return Damage(kernel, file, before + barrier + after, before + "pass" + after)


DAMAGES = (
    _without("join_conv", "kernels/block_join_gpu.py", "inside = i32(inside + (threads >> i32(5)))\n                "),
    _without("top_candidates", "kernels/candidates.py", "            t += threads\n        ", after="\n        turn = i32(0)"),
    _without("selector_walk", "kernels/selector.py", "                item += threads\n            ", after="\n            drafts"),
    _without("project_argmax", "kernels/head.py", "                row += step\n            "),
    _without("rms_norm", "kernels/block_reduce.py", "", after="\n    total = f32(0.0)"),
    _without("project_residual", "kernels/tile_gpu.py", "            wait()\n            ", "warp_barrier()"),
)
