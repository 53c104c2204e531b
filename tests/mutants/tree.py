"""A copy of the sources that a mutation may damage, with compiled kernels of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "graphs", "runtime", "tests")
SECONDS_PER_RUN = 300


GATE_CASES = (
    "k=3 batch=4 prompt=mixed accept=ragged event=reuse stop=eos schedule=random seed=4",
    "k=1 batch=3 prompt=chunk+k+1 accept=alternating event=preempt policy=integrated seed=1",
    "k=5 batch=8 prompt=mixed accept=random event=skip stop=max_tokens steps_in_flight=3 schedule=random seed=2",
    "k=3 batch=3 prompt=max_len-k-1 accept=all event=cancel stop=string schedule=random seed=5",
    "k=3 batch=4 prompt=k+1 accept=all stop=string mode=eager steps_in_flight=1 seed=3",
    "speculator=ngram k=7 batch=4 prompt=mixed event=reuse stop=eos policy=integrated schedule=random seed=6",
    "speculator=none k=0 batch=4 prompt=mixed event=preempt stop=max_tokens seed=7",
    "k=3 batch=4 prompt=mixed accept=random event=reuse stop=model_eos steps_in_flight=3 seed=9",
    "k=3 batch=4 prompt=k+1 accept=all event=reuse stop=min_tokens seed=10",
)
"""Cases of the gates that a mutation is played through: few, because each mutation plays them all."""


@dataclass(frozen=True)
class Run:
    """What pytest said, or the gates. Exit code 1: something failed; others (but 0) mean that it could not test."""

    exit_code: int
    output: str
    seconds: float


class Tree:
    """One copy below `folder`; a worker has one for itself.

    Compiled kernels are kept by the text of their source, and their folder is named after a digest of all of them. A mutated kernel
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
        self._take_over()

    def pytest(self, tests: Iterable[str], *, first_failure: bool = True) -> Run:
        """pytest over node ids, in a process of its own."""
        command = ["-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", *(["-x"] if first_failure else [])]
        return self._python([*command, *tests])

    def gates(self) -> Run:
        """Both gates over GATE_CASES; the output is their JSON."""
        cases = [part for case in GATE_CASES for part in ("--case", case)]
        return self._python(["-m", "runtime.cli", "gates", "--json", "--quiet", *cases])

    def _python(self, arguments: Iterable[str]) -> Run:
        environment = {**os.environ, "DRAFTGRAPH_CACHE": str(self._cache), "PYTHONPATH": "", "COLUMNS": "200"}
        environment.pop("PYTEST_ADDOPTS", None)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_PER_RUN,
                check=False,
            )
            # A gate's JSON is alone on stdout; what went wrong before it is on stderr.
            return Run(done.returncode, done.stdout or done.stderr, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            return Run(-1, f"no end after {SECONDS_PER_RUN} s", time.monotonic() - began)

    @contextmanager
    def mutated(self, sources: Mapping[str, str]) -> Iterator[None]:
        """While it lasts, the files of `sources` hold other text."""
        before = self._compiled()
        kept = {file: (self.path / file).stat().st_mtime_ns for file in sources}
        originals = {file: (self.path / file).read_text() for file in sources}
        self._stamp += 1
        try:
            for file, source in sources.items():
                self._write(file, source, self._stamp * 1_000_000_000)
            if any(file.startswith("kernels/") for file in sources):
                self._seed(sources)
            yield
        finally:
            for file, source in originals.items():
                self._write(file, source, kept[file])
            for folder in self._compiled() - before:
                shutil.rmtree(folder)

    def _write(self, file: str, source: str, mtime_ns: int) -> None:
        """Text and time: bytecode is kept by time and size."""
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
        asked = self._cache_folder(self.path, self._cache)
        if asked is not None:
            shutil.copytree(next(iter(unmutated)), asked, copy_function=os.link)

    def _take_over(self) -> None:
        """What other processes have compiled of these sources."""
        theirs, ours = self._cache_folder(ROOT), self._cache_folder(self.path, self._cache)
        if theirs is not None and ours is not None and theirs.name == ours.name and theirs.is_dir():
            shutil.copytree(theirs, ours)

    @staticmethod
    def _cache_folder(sources: Path, cache: Path | None = None) -> Path | None:
        """Where a process keeps what it compiles of `sources`; cache: None is the user's."""
        code = "from graphs.compile_cache import kernel_cache_dir; print(kernel_cache_dir())"
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"} | ({} if cache is None else {"DRAFTGRAPH_CACHE": str(cache)})
        command = [sys.executable, "-c", code]
        asked = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
        return Path(asked.stdout.strip()) if asked.returncode == 0 else None
