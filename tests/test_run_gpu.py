"""What `make gpu` says of a bench that ended badly: the table of the others is printed all the same."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import run_gpu
from tests.run_gpu import BenchRun, run_bench


@pytest.mark.parametrize(
    ("code", "stderr", "said"),
    [
        (-9, "", "the process ended with code -9"),
        (-9, " \n", "the process ended with code -9"),
        (2, "log\nerror: no room\n", "error: no room"),
    ],
)
def test_a_bench_that_was_killed_is_a_failure_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, stderr: str, said: str
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(run_gpu.subprocess, "run", run)
    assert run_bench(BenchRun("small", []), tmp_path) == ([], [f"bench of small: {said}"])
