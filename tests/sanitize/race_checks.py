"""Racecheck of the workload's kernels: compiled first without the tool, then each kernel in a process of its own; the same of
copies of the sources in which a race was planted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.sanitize.damages import DAMAGES, ROOT, Damage
from tests.sanitize.sanitizer import Finding, Outcome, Sanitizer, end_all, unnumbered

CALL = (sys.executable, "-m", "tests.sanitize.workload")
WARM_LIMIT_S = 240
Kernels = Sequence[Mapping[str, Any]]
"""What the workload says of each: name, entry, shared."""


@dataclass(frozen=True)
class Checked:
    """kernels: all of the workload. findings: of those that share memory, by entry. planted: of each damage."""

    kernels: Kernels
    findings: Mapping[str, Finding]
    planted: Mapping[Damage, Finding]

    @property
    def passed(self) -> bool:
        """Nothing found in the sources as they are, and every planted race."""
        clean = all(finding.outcome is Outcome.CLEAN for finding in self.findings.values())
        return clean and all(finding.names(damage.kernel) for damage, finding in self.planted.items()) and bool(self.planted)

    def __str__(self) -> str:
        """A line a kernel, then one a planted race; kernels without shared memory are only counted."""
        kernels = [kernel for kernel in self.kernels if kernel["entry"] in self.findings]
        width = max((len(kernel["name"]) for kernel in kernels), default=6)
        lines = [f"{'kernel':{width}}  shared bytes  racecheck"]
        lines += [f"{each['name']:{width}}  {each['shared']:12}  {self.findings[each['entry']].verdict}" for each in kernels]
        for damage, finding in self.planted.items():
            told = "reported" if finding.names(damage.kernel) else f"NOT REPORTED: {finding.verdict}"
            lines.append(f"planted: {damage}: {told}")
        clean = sum(finding.outcome is Outcome.CLEAN for finding in self.findings.values())
        caught = sum(finding.names(damage.kernel) for damage, finding in self.planted.items())
        bare = sum(not kernel["shared"] for kernel in self.kernels)
        lines.append(f"{clean} of {len(kernels)} kernels without hazards, {caught} of {len(self.planted)} planted races reported")
        lines.append(f"{bare} kernels more share no memory, so that there is nothing to race for")
        if caught < len(self.planted) or not self.planted:
            lines.append("NO VERDICT: a check that does not report a planted race says nothing by finding none")
        else:
            lines.append("CLEAN" if self.passed else "NOT CLEAN")
        return "\n".join(lines)


class RaceChecks:
    """limit_s: of a process. logs: folder for what the tool prints."""

    def __init__(self, racecheck: Sanitizer, *, limit_s: float = 100, logs: Path | None = None) -> None:
        self.racecheck, self.limit_s, self.logs = racecheck, limit_s, logs

    def run(self, *, only: Sequence[str] = (), workers: int = 8) -> Checked | None:
        """only: names of kernels, none for all. None: the workload does not run without the tool."""
        damages = [damage for damage in DAMAGES if not only or damage.kernel in only]
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
            copies = {damage: Path(name) / str(number) for number, damage in enumerate(damages)}
            try:
                compiled = {damage: pool.submit(_copied, damage, folder) for damage, folder in copies.items()}
                found = warm(ROOT, WARM_LIMIT_S)
                if found is None:
                    return None
                say(f"{found['accepted']} of {found['drafted']} drafts accepted")
                kernels = [kernel for kernel in found["kernels"] if kernel["shared"] and (not only or kernel["name"] in only)]
                own = [pool.submit(self._check, ROOT, kernel["name"], kernel["entry"]) for kernel in kernels]
                planted = {}
                for damage, folder in copies.items():
                    compiled[damage].result()
                    entry = next((kernel["entry"] for kernel in kernels if kernel["name"] == damage.kernel), damage.kernel)
                    planted[damage] = pool.submit(self._check, folder, str(damage), entry)
                findings = {kernel["entry"]: job.result() for kernel, job in zip(kernels, own, strict=True)}
                controls = {damage: job.result() for damage, job in planted.items()}
            except BaseException:  # the pool would wait for what is under way
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        return Checked(found["kernels"], findings, controls)

    def _check(self, folder: Path, what: str, entry: str) -> Finding:
        finding = self.racecheck.run(
            [entry], CALL, folder=folder, environment=environment_of(folder), limit_s=self.limit_s
        )  # fmt: skip
        if finding.outcome is Outcome.CLEAN and f'"{unnumbered(entry)}' not in finding.text:
            # The workload says at its end what it launched: a filter that fits none of it finds nothing.
            finding = replace(finding, outcome=Outcome.UNSEEN)
        say(f"{what}: {finding.verdict} in {finding.seconds:.0f} s")
        if self.logs is not None:
            self.logs.mkdir(parents=True, exist_ok=True)
            (self.logs / f"{re.sub('[^a-z_]+', '-', what)}.txt").write_text(finding.text, encoding="utf-8")
        return finding


def _copied(damage: Damage, folder: Path) -> None:
    damage.copy_to(folder)
    warm(folder, WARM_LIMIT_S)


def warm(folder: Path, limit_s: float) -> dict[str, Any] | None:
    """The workload without the tool: what it compiles is kept, and it says which kernels there are. None: it did not, as may be
    where it is damaged."""
    began = time.monotonic()
    environment = environment_of(folder)
    try:
        done = subprocess.run(
            CALL, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = -1, "", f"no end after {limit_s:.0f} s"
    say(f"{'sources' if folder == ROOT else 'copy'}: compiled and run in {time.monotonic() - began:.0f} s, exit code {code}")
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
