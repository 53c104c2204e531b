"""`python -m tests.sanitize`: racecheck of every kernel of a speculative step that shares memory, each in a process of its own.

A run without the tool compiles the kernels, keeps them, and says which there are. Then one process for each kernel, a few at a
time: the tool looks at that kernel alone. The same once more in a copy without barriers: where nothing is reported then, nothing
says that the kernel was looked at. Exit code 1: a hazard, a run without an end, or no planted race reported at all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.sanitize.barriers import ROOT, tree_without_barriers
from tests.sanitize.sanitizer import Finding, Outcome, Sanitizer

CALL = [sys.executable, "-m", "tests.sanitize.workload"]
WARM_LIMIT_S = 240
Kernels = Sequence[Mapping[str, Any]]
Findings = Sequence[tuple[Finding, Finding]]
"""Of each kernel: as it is, and in the copy."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--only", action="append", metavar="KERNEL", help="this kernel; may be given several times")
    parser.add_argument("--workers", type=int, default=8, help="processes at a time (8)")
    parser.add_argument("--limit", type=float, default=100, metavar="S", help="seconds of a process (100)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keeps what the tool printed of each kernel")
    options = parser.parse_args(arguments)
    racecheck = Sanitizer.found("racecheck")
    if racecheck is None:
        print("make sanitize: no compute-sanitizer on this machine; it comes with the CUDA toolkit", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.workers) as pool:
        copy = Path(name)
        removed = tree_without_barriers(copy)
        compiled = pool.submit(warm, copy, options.limit)
        found = warm(ROOT, WARM_LIMIT_S)
        if found is None:
            return 1
        _say(f"{found['accepted']} of {found['drafted']} drafts accepted; {removed} barriers are missing in the copy")
        chosen = [
            kernel for kernel in found["kernels"] if kernel["shared"] and kernel["name"] in (options.only or [kernel["name"]])
        ]

        def check(folder: Path, kernel: Mapping[str, Any]) -> Finding:
            finding = racecheck.run(
                [kernel["entry"]], CALL, folder=folder, environment=_environment(folder), limit_s=options.limit
            )  # fmt: skip
            where = "" if folder == ROOT else " without barriers"
            _say(f"{kernel['name']}{where}: {finding.outcome.value} {finding.count or ''} in {finding.seconds:.0f} s")
            if options.logs is not None:
                options.logs.mkdir(parents=True, exist_ok=True)
                number = found["kernels"].index(kernel)
                (options.logs / f"{number}-{kernel['name']}{where.replace(' ', '-')}.txt").write_text(finding.text)
            return finding

        own = [pool.submit(check, ROOT, kernel) for kernel in chosen]
        compiled.result()
        planted = [pool.submit(check, copy, kernel) for kernel in chosen]
        findings = [(job.result(), control.result()) for job, control in zip(own, planted, strict=True)]
    print(table(found["kernels"], chosen, findings), flush=True)
    return 0 if passed(findings) else 1


def passed(findings: Findings) -> bool:
    """Nothing found as the sources are, something without barriers."""
    clean = all(finding.outcome is Outcome.CLEAN for finding, _ in findings)
    return clean and any(control.outcome is Outcome.HAZARDS for _, control in findings)


def warm(folder: Path, limit_s: float) -> dict[str, Any] | None:
    """The workload without the tool: what it compiles is kept, and it says which kernels there are. None: it did not, as may be
    without barriers."""
    began = time.monotonic()
    environment = _environment(folder)
    try:
        done = subprocess.run(
            CALL, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = -1, "", f"no end after {limit_s:.0f} s"
    where = "sources" if folder == ROOT else "copy without barriers"
    _say(f"{where}: compiled and run in {time.monotonic() - began:.0f} s, exit code {code}")
    if code != 0:
        _say(err[-3000:] if folder == ROOT else err[-300:])
        return None
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def table(kernels: Kernels, chosen: Kernels, findings: Findings) -> str:
    """A line a kernel, the planted race beside it; those without shared memory are only counted."""
    width = max((len(kernel["name"]) for kernel in chosen), default=6)
    lines = [f"{'kernel':{width}}  shared bytes  {'racecheck':13}  without barriers"]
    for kernel, pair in zip(chosen, findings, strict=True):
        own, control = (finding.outcome.value + (f" {finding.count}" if finding.count else "") for finding in pair)
        lines.append(f"{kernel['name']:{width}}  {kernel['shared']:12}  {own:13}  {control}")
    bare = sum(not kernel["shared"] for kernel in kernels)
    clean = sum(own.outcome is Outcome.CLEAN for own, _ in findings)
    caught = sum(control.outcome is Outcome.HAZARDS for _, control in findings)
    lines.append(f"{clean} of {len(chosen)} kernels clean, the race in their copies reported for {caught}; {bare} share no memory")
    return "\n".join(lines)


def _environment(folder: Path) -> dict[str, str]:
    """Modules come from `folder`, and Numba compiles for the GPU."""
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part).resolve() != ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *rest]), "NUMBA_ENABLE_CUDASIM": "0"}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
