"""compute-sanitizer: how it is called for one kernel, and what it found."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

HAZARDS_EXIT = 9
_NUMBER = re.compile(r"(?<=B)\d+v\d+B.*$")
_SUMMARY = re.compile(r"(?:RACECHECK|ERROR) SUMMARY: (\d+) (?:hazards?|errors?)")


class Outcome(Enum):
    """What one run of a tool says."""

    CLEAN = "0 hazards"
    HAZARDS = "HAZARDS"
    NO_END = "NO END"
    BROKEN = "DID NOT RUN"
    UNSEEN = "NOT LOOKED AT"


@dataclass(frozen=True)
class Finding:
    """count: of hazards or errors. seconds: of the run. text: what the tool printed."""

    outcome: Outcome
    count: int
    seconds: float
    text: str

    def names(self, kernel: str) -> bool:
        """Is it a hazard that the tool says is in `kernel`?"""
        lines = [line for line in self.text.splitlines() if line.startswith("=====")]
        return self.outcome is Outcome.HAZARDS and any(kernel in line for line in lines)

    @property
    def verdict(self) -> str:
        return f"{self.outcome.value} {self.count or ''}".rstrip()


@dataclass(frozen=True)
class Sanitizer:
    """One tool of it. `options`: its help text says which; the name of a filter by kernel differs from version to version."""

    program: str
    tool: str
    help: str

    @classmethod
    def found(cls, tool: str) -> Sanitizer | None:
        """None where it is not installed."""
        program = shutil.which("compute-sanitizer")
        if program is None:
            return None
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=False).stdout
        return cls(program, tool, text)

    def command(self, entries: Sequence[str], call: Sequence[str]) -> list[str]:
        """Check the kernels whose names in the loaded module begin as `entries` do; none: every kernel."""
        # API errors are left out: cuda-bindings asks the driver for functions that it may not have.
        command = [self.program, "--tool", self.tool, "--report-api-errors", "no", "--error-exitcode", str(HAZARDS_EXIT)]
        command += ["--print-limit", "4"]
        option = "--kernel-name" if "--kernel-name" in self.help else "--kernel-regex"
        for entry in entries:
            name = unnumbered(entry)
            command += [option, f"kns={name}" if option == "--kernel-name" else f"kns={re.escape(name)}"]
        return [*command, *call]

    def run(
        self, entries: Sequence[str], call: Sequence[str], *, folder: Path, environment: Mapping[str, str], limit_s: float
    ) -> Finding:
        """Run `call` in `folder` under the tool. Whatever takes longer than `limit_s` is ended, with all that it started."""
        began = time.monotonic()
        process = subprocess.Popen(
            self.command(entries, call),
            cwd=folder,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        _running.add(process)
        try:
            text, _ = process.communicate(timeout=limit_s)
            ended = True
        except subprocess.TimeoutExpired:
            _end(process)
            text, _ = process.communicate()
            ended = False
        finally:
            _running.discard(process)
        return judged(text, process.returncode, time.monotonic() - began, ended=ended)


def unnumbered(entry: str) -> str:
    """The name of a kernel in its module up to the number that Numba gives to what it compiles: it is another one wherever other
    kernels were compiled before, and a filter that has it fits nothing there."""
    return _NUMBER.sub("", entry)


_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """Ends every run that is under way, with all that it started: nobody else would, once this process is gone."""
    for process in tuple(_running):
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def judged(text: str, code: int, seconds: float, *, ended: bool) -> Finding:
    """Hazards count whether or not the program came to its end; none of them is a verdict only when it did, and was right. What the
    tool says of itself is counted by it as a hazard, and is none."""
    if "Internal Sanitizer Error" in text:
        return Finding(Outcome.BROKEN, 0, seconds, text)
    summary = _SUMMARY.search(text)
    count = int(summary[1]) if summary else 0
    if count:
        return Finding(Outcome.HAZARDS, count, seconds, text)
    if not ended:
        return Finding(Outcome.NO_END, 0, seconds, text)
    return Finding(Outcome.CLEAN if summary and code == 0 else Outcome.BROKEN, 0, seconds, text)
