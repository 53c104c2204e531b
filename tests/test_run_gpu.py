"""What `make gpu` says: of a bench that ended badly, beside the table of the others; how many tests were skipped, and why."""

from __future__ import annotations

import os
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


SKIPPING = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_extra(n):
    pytest.importorskip("a_package_that_is_nowhere", reason="it is not installed: extra profile")

@pytest.mark.skip(reason="needs two of them")
def test_two():
    pass

def test_well():
    pass
"""


def test_the_last_line_says_how_many_were_skipped_and_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run of pytest in processes of its own, as `make gpu` starts them."""
    files = []
    for name in ("test_a.py", "test_b.py"):
        files.append(tmp_path / name)
        files[-1].write_text("import pytest\npytestmark = pytest.mark.gpu\n" + SKIPPING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: of a GPU\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(run_gpu.ROOT), os.environ.get("PYTHONPATH")))))
    monkeypatch.setattr(run_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(run_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(run_gpu, "gpu_test_files", lambda: (files, []))
    assert run_gpu.main(["--without-benches"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    said = "2 passed, 0 failed, 8 skipped (6 it is not installed: extra profile; 2 needs two of them); tests "
    assert last.startswith(said), last
