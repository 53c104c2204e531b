"""Racecheck of the workload's kernels: compiled first without the tool, then each kernel in a process of its own, as it is and in a
copy of the sources without barriers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sanitize.barriers import ROOT, tree_without_barriers
from tests.sanitize.sanitizer import Finding, Outcome, Sanitizer, end_all

CALL = (sys.executable, "-m", "tests.sanitize.workload")
WARM_LIMIT_S = 240
Kernels = Sequence[Mapping[str, Any]]
"""What the workload says of each: name, entry, shared."""


@dataclass(frozen=True)
class Checked:
    """kernels: all of the workload. findings: of each that shares memory, as it is and without barriers."""

    kernels: Kernels
    findings: dict[str, tuple[Finding, Finding]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Nothing found in the sources as they are, and something without barriers."""
        clean = all(own.outcome is Outcome.CLEAN for own, _ in self.findings.values())
        return clean and any(control.outcome is Outcome.HAZARDS for _, control in self.findings.values())

    def __str__(self) -> str:
        """A line a kernel, the planted race beside it; those without shared memory are only counted."""
        kernels = [kernel for kernel in self.kernels if kernel["entry"] in self.findings]
        width = max((len(kernel["name"]) for kernel in kernels), default=6)
        lines = [f"{'kernel':{width}}  shared bytes  {'racecheck':13}  without barriers"]
        for kernel in kernels:
            own, control = self.findings[kernel["entry"]]
            lines.append(f"{kernel['name']:{width}}  {kernel['shared']:12}  {own.verdict:13}  {control.verdict}")
        clean = sum(own.outcome is Outcome.CLEAN for own, _ in self.findings.values())
        caught = sum(control.outcome is Outcome.HAZARDS for _, control in self.findings.values())
        bare = sum(not kernel["shared"] for kernel in self.kernels)
        end = f"{clean} of {len(kernels)} kernels clean, the race in their copies reported for {caught}; {bare} share no memory"
        return "\n".join([*lines, end])


def check_races(
    racecheck: Sanitizer, *, only: Sequence[str] = (), workers: int = 8, limit_s: float = 100, logs: Path | None = None
) -> Checked | None:
    """Args: only: names of kernels, none for all. limit_s: of a process. logs: folder for what the tool prints.

    None: the workload does not run without the tool.
    """
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        copy = Path(name)
        removed = tree_without_barriers(copy)
        compiled = pool.submit(warm, copy, limit_s)
        found = warm(ROOT, WARM_LIMIT_S)
        if found is None:
            return None
        say(f"{found['accepted']} of {found['drafted']} drafts accepted; {removed} barriers are missing in the copy")
        kernels = [kernel for kernel in found["kernels"] if kernel["shared"] and (not only or kernel["name"] in only)]

        def check(folder: Path, kernel: Mapping[str, Any]) -> Finding:
            environment = environment_of(folder)
            finding = racecheck.run([kernel["entry"]], CALL, folder=folder, environment=environment, limit_s=limit_s)
            where = "" if folder == ROOT else " without barriers"
            say(f"{kernel['name']}{where}: {finding.verdict} in {finding.seconds:.0f} s")
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                number = found["kernels"].index(kernel)
                (logs / f"{number}-{kernel['name']}{where.replace(' ', '-')}.txt").write_text(finding.text, encoding="utf-8")
            return finding

        try:
            own = [pool.submit(check, ROOT, kernel) for kernel in kernels]
            compiled.result()
            planted = [pool.submit(check, copy, kernel) for kernel in kernels]
            pairs = [(job.result(), control.result()) for job, control in zip(own, planted, strict=True)]
        except BaseException:  # the pool would wait for what is under way
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
        return Checked(found["kernels"], {kernel["entry"]: pair for kernel, pair in zip(kernels, pairs, strict=True)})


def warm(folder: Path, limit_s: float) -> dict[str, Any] | None:
    """The workload without the tool: what it compiles is kept, and it says which kernels there are. None: it did not, as may be
    without barriers."""
    began = time.monotonic()
    environment = environment_of(folder)
    try:
        done = subprocess.run(
            CALL, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = -1, "", f"no end after {limit_s:.0f} s"
    where = "sources" if folder == ROOT else "copy without barriers"
    say(f"{where}: compiled and run in {time.monotonic() - began:.0f} s, exit code {code}")
    if code != 0:
        say(err[-3000:] if folder == ROOT else err[-300:])
        return None
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def environment_of(folder: Path) -> dict[str, str]:
    """Modules come from `folder`, and Numba compiles for the GPU."""
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part).resolve() != ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *rest]), "NUMBA_ENABLE_CUDASIM": "0"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
