"""The racecheck of single kernels: what it makes of a tool's answers, and that nothing passes that was not seen to fail."""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sanitize import race_checks
from tests.sanitize.__main__ import main
from tests.sanitize.barriers import ROOT, tree_without_barriers
from tests.sanitize.sanitizer import Outcome, Sanitizer, judged
from tests.sanitize.workload import run

CLEAN = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
FOUND = "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)"
KERNELS = [{"name": "fold", "entry": "_Z4fold", "shared": 64}, {"name": "join", "entry": "_Z4join", "shared": 128}]
TOOL = """#!{python}
import json, os, sys, time
answers = json.load(open({answers!r}))
if "--help" in sys.argv:
    print(answers["help"])
    sys.exit()
where = "sources" if os.getcwd() == {root!r} else "copy"
entry = next(word.partition("=")[2] for word in sys.argv if word.startswith(("kne=", "kns=")))
text, code, seconds = answers[where].get(entry, answers[where]["*"])
time.sleep(seconds)
print(text)
sys.exit(code)
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a compute-sanitizer in front that gives these answers: text, exit code, seconds, by place and kernel."""

    def answering(sources: dict[str, Any], copy: dict[str, Any], kernels: Any = KERNELS) -> None:
        answers = tmp_path / "answers.json"
        answers.write_text(json.dumps({"help": "  --kernel-name arg", "sources": sources, "copy": copy}))
        program = tmp_path / "compute-sanitizer"
        program.write_text(TOOL.format(python=sys.executable, answers=str(answers), root=str(ROOT)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        workload = f"print({json.dumps({'kernels': kernels, 'drafted': 9, 'accepted': 2})!r})"
        monkeypatch.setattr(race_checks, "CALL", (sys.executable, "-c", workload))
        monkeypatch.setattr(race_checks, "tree_without_barriers", lambda folder: 7)

    return answering


def squeezed(table: str) -> str:
    return re.sub(" +", " ", table)


def test_clean_kernels_whose_copies_race_pass(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {"name": "copy_ids", "entry": "_Z4copy", "shared": 0}
    tool({"*": [CLEAN, 0, 0]}, {"*": [FOUND, 9, 0], "_Z4join": [CLEAN, 0, 0]}, [*KERNELS, bare])
    assert main(["--logs", str(tmp_path / "logs")]) == 0
    out, err = capsys.readouterr()
    assert squeezed(out).splitlines()[1:] == [
        "fold 64 0 hazards HAZARDS 3",
        "join 128 0 hazards 0 hazards",
        "2 of 2 kernels clean, the race in their copies reported for 1; 1 share no memory",
    ]
    assert "2 of 9 drafts accepted; 7 barriers are missing in the copy" in err
    assert "fold without barriers: HAZARDS 3 in" in err
    assert FOUND in (tmp_path / "logs" / "0-fold-without-barriers.txt").read_text()


@pytest.mark.parametrize(
    ("own", "copy", "verdict"),
    [
        ([FOUND, 9, 0], [FOUND, 9, 0], "HAZARDS 3"),
        ([FOUND, 0, 0], [FOUND, 9, 0], "HAZARDS 3"),
        (["Segmentation fault", 139, 0], [FOUND, 9, 0], "DID NOT RUN"),
        (["nothing at all", 0, 0], [FOUND, 9, 0], "DID NOT RUN"),
        ([CLEAN, 1, 0], [FOUND, 9, 0], "DID NOT RUN"),
        ([CLEAN, 0, 0], [CLEAN, 0, 0], "0 hazards"),
        ([CLEAN, 0, 0], ["CUDA error", 1, 0], "0 hazards"),
    ],
    ids=["hazards", "hazards-and-exit-0", "killed", "no-summary", "wrong-result", "cannot-fail", "control-broken"],
)
def test_nothing_else_passes(tool: Any, capsys: pytest.CaptureFixture[str], own: Any, copy: Any, verdict: str) -> None:
    """Above all not a check that reports nothing where every kernel races."""
    tool({"*": [CLEAN, 0, 0], "_Z4fold": own}, {"*": copy})
    assert main([]) == 1
    assert f"fold 64 {verdict}" in squeezed(capsys.readouterr().out)


def test_a_run_without_an_end_is_ended_and_told(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tool({"*": [CLEAN, 0, 30]}, {"*": [FOUND, 9, 0]})
    began = time.monotonic()
    assert main(["--only", "fold", "--limit", "2"]) == 1
    assert time.monotonic() - began < 20
    assert "fold 64 NO END" in squeezed(capsys.readouterr().out)


def test_hazards_seen_before_the_end_of_time_count() -> None:
    assert judged(FOUND, -9, 1.0, ended=False).outcome is Outcome.HAZARDS
    assert judged("", -9, 1.0, ended=False).outcome is Outcome.NO_END


def test_a_workload_that_does_not_run_is_no_pass(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tool({"*": [CLEAN, 0, 0]}, {"*": [FOUND, 9, 0]})
    monkeypatch.setattr(race_checks, "CALL", (sys.executable, "-c", "raise SystemExit(1)"))
    assert main([]) == 1


def test_without_the_tool_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/dev/null")
    assert main([]) == 1
    assert "no compute-sanitizer on this machine" in capsys.readouterr().err


def test_the_filter_is_spelt_as_the_version_wants_it() -> None:
    named, regex = (
        Sanitizer("cs", "racecheck", text).command(["_Z4fold$a"], ["x"]) for text in ("--kernel-name", "--kernel-regex")
    )
    assert named[-3:] == ["--kernel-name", "kne=_Z4fold$a", "x"]
    assert regex[-3:] == ["--kernel-regex", r"kns=_Z4fold\$a", "x"]


def test_the_copy_has_no_barrier_and_is_the_same_program_otherwise(tmp_path: Path) -> None:
    removed = tree_without_barriers(tmp_path)
    assert removed > 50
    for path in sorted((tmp_path / "kernels").glob("*.py")):
        source, before = path.read_text(), (ROOT / "kernels" / path.name).read_text()
        ast.parse(source)
        assert "cuda.syncthreads()" not in source
        assert len(source.splitlines()) == len(before.splitlines())
    assert (tmp_path / "tests" / "sanitize" / "workload.py").exists()


def test_drafts_of_the_workload_are_accepted_in_part(tmp_path: Path) -> None:
    found = run(tmp_path, model__dtype="float32")
    assert 0 < found["accepted"] < found["drafted"]
