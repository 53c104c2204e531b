"""A copy of the sources that a mutation may damage, with compiled kernels of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "graphs", "runtime", "tests")
SECONDS_PER_TEST = 300


@dataclass(frozen=True)
class Run:
    """What pytest said. Exit code 1: at least one test failed; others (but 0) mean that it could not test."""

    exit_code: int
    output: str
    seconds: float


class Tree:
    """One copy below `folder`; a worker has one for itself.

    Numba's cache is keyed by path, time and size of a source, and its folder by a digest of all kernel sources. A mutated kernel
    therefore gets a new folder; it is filled with links to what the unmutated kernels were compiled to, so that only the mutated
    file is compiled, unless other kernels import it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tree"
        self._cache = folder / "cache"
        self._stamp = int(time.time())
        for package in PACKAGES:
            shutil.copytree(ROOT / package, self.path / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        shutil.copy2(ROOT / "pyproject.toml", self.path)

    def run(self, tests: Iterable[str], *, first_failure: bool = True) -> Run:
        """pytest over node ids, in a process of its own."""
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly"]
        command += ["-x"] if first_failure else []
        environment = {**os.environ, "DRAFTGRAPH_CACHE": str(self._cache), "PYTHONPATH": "", "COLUMNS": "200"}
        environment.pop("PYTEST_ADDOPTS", None)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_PER_TEST,
                check=False,
            )
            return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - began)
        except subprocess.TimeoutExpired as expired:
            output = expired.stdout or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            return Run(-1, f"{text}\nno end after {SECONDS_PER_TEST} s", time.monotonic() - began)

    def run_mutated(self, sources: Mapping[str, str], test: str) -> Run:
        """pytest over one node id while the files of `sources` hold other text."""
        before = self._compiled()
        kept = {file: (self.path / file).stat().st_mtime_ns for file in sources}
        originals = {file: (self.path / file).read_text() for file in sources}
        self._stamp += 1
        try:
            for file, source in sources.items():
                self._write(file, source, self._stamp * 1_000_000_000)
            if any(file.startswith("kernels/") for file in sources):
                self._seed(sources)
            return self.run([test])
        finally:
            for file, source in originals.items():
                self._write(file, source, kept[file])
            for folder in self._compiled() - before:
                shutil.rmtree(folder)

    def _write(self, file: str, source: str, mtime_ns: int) -> None:
        """Text and time: bytecode and compiled kernels are kept by time and size."""
        path = self.path / file
        path.write_text(source)
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def _compiled(self) -> set[Path]:
        return set((self._cache / "kernels").glob("*"))

    def _seed(self, sources: Mapping[str, str]) -> None:
        """Link compiled kernels into the folder that the mutated sources will ask for."""
        unmutated = self._compiled()
        stems = {Path(file).stem for file in sources if file.startswith("kernels/")}
        imported = re.compile(rf"from kernels\.({'|'.join(stems)}) import")
        if len(unmutated) != 1 or any(imported.search(path.read_text()) for path in (self.path / "kernels").glob("*.py")):
            return
        code = "import graphs.cpu_executor as executor; print(executor.kernel_cache_dir())"
        environment = {**os.environ, "DRAFTGRAPH_CACHE": str(self._cache), "NUMBA_ENABLE_CUDASIM": "1"}
        asked = subprocess.run(
            [sys.executable, "-c", code], cwd=self.path, env=environment, capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            shutil.copytree(next(iter(unmutated)), asked.stdout.strip(), copy_function=os.link)
