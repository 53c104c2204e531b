"""The racecheck of single kernels: what it makes of a tool's answers, and that nothing passes that was not seen to fail."""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runtime
from kernels.candidates import top_candidates
from tests.sanitize import race_checks
from tests.sanitize.__main__ import main
from tests.sanitize.damages import DAMAGES, ROOT, Damage
from tests.sanitize.sanitizer import Outcome, Sanitizer, judged, unnumbered
from tests.sanitize.workload import clusters_of_one, run

CLEAN = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
FOUND = """========= Error: Race reported between Write access at _Z4fold+0x100
=========     and Read access at _Z4fold+0x200 [62 hazards]
========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)"""
INTERNAL = """========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
KERNELS = [
    {"name": "fold", "entry": "_Z4fold", "shared": 64},
    {"name": "join", "entry": "_Z4join", "shared": 128},
]
PLANTED = Damage("fold", "kernels/block_reduce.py", "    total = f32(0.0)", "    total = f32(1.0)")
TOOL = """#!{python}
import json, os, sys, time
answers = json.load(open({answers!r}))
if "--help" in sys.argv:
    print(answers["help"])
    sys.exit()
where = "sources" if os.getcwd() == {root!r} else "copy"
entry = next(word.partition("=")[2] for word in sys.argv if word.startswith("kns="))
text, code, seconds = answers[where].get(entry, answers[where]["*"])
time.sleep(seconds)
print(json.dumps(answers["launched"]))
print(text)
sys.exit(code)
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a compute-sanitizer in front that gives these answers: text, exit code, seconds, by place and kernel."""

    def answering(sources: dict[str, Any], copy: dict[str, Any], kernels: Any = KERNELS, launched: Any = KERNELS) -> None:
        answers = tmp_path / "answers.json"
        answers.write_text(json.dumps({"help": "  --kernel-name arg", "sources": sources, "copy": copy, "launched": launched}))
        program = tmp_path / "compute-sanitizer"
        program.write_text(TOOL.format(python=sys.executable, answers=str(answers), root=str(ROOT)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        workload = f"print({json.dumps({'kernels': kernels, 'drafted': 9, 'accepted': 2})!r})"
        monkeypatch.setattr(race_checks, "CALL", (sys.executable, "-c", workload))
        monkeypatch.setattr(race_checks, "DAMAGES", (PLANTED,))

    return answering


def squeezed(table: str) -> str:
    return re.sub(" +", " ", table)


def test_clean_kernels_and_a_planted_race_that_is_reported_pass(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = {"name": "copy_ids", "entry": "_Z4copy", "shared": 0}
    tool({"*": [CLEAN, 0, 0]}, {"*": [FOUND, 9, 0]}, [*KERNELS, bare])
    assert main(["--logs", str(tmp_path / "logs")]) == 0
    out, err = capsys.readouterr()
    assert squeezed(out).splitlines()[1:] == [
        "fold 64 0 hazards",
        "join 128 0 hazards",
        "planted: fold less a barrier of kernels/block_reduce.py: reported",
        "2 of 2 kernels without hazards, 1 of 1 planted races reported",
        "1 kernels more share no memory, so that there is nothing to race for",
        "CLEAN",
    ]
    assert "2 of 9 drafts accepted" in err
    assert "fold less a barrier of kernels/block_reduce.py: HAZARDS 3 in" in err
    assert FOUND in (tmp_path / "logs" / "fold-less-a-barrier-of-kernels-block_reduce-py.txt").read_text()


@pytest.mark.parametrize(
    ("own", "copy", "line"),
    [
        ([FOUND, 9, 0], [FOUND, 9, 0], "fold 64 HAZARDS 3"),
        ([FOUND, 0, 0], [FOUND, 9, 0], "fold 64 HAZARDS 3"),
        ([INTERNAL, 9, 0], [FOUND, 9, 0], "fold 64 DID NOT RUN"),
        (["Segmentation fault", 139, 0], [FOUND, 9, 0], "fold 64 DID NOT RUN"),
        (["nothing at all", 0, 0], [FOUND, 9, 0], "fold 64 DID NOT RUN"),
        ([CLEAN, 1, 0], [FOUND, 9, 0], "fold 64 DID NOT RUN"),
        ([CLEAN, 0, 0], [CLEAN, 0, 0], "block_reduce.py: NOT REPORTED: 0 hazards"),
        ([CLEAN, 0, 0], ["CUDA error", 1, 0], "block_reduce.py: NOT REPORTED: DID NOT RUN"),
        ([CLEAN, 0, 0], [INTERNAL, 9, 0], "block_reduce.py: NOT REPORTED: DID NOT RUN"),
        ([CLEAN, 0, 0], [FOUND.replace("fold", "join"), 9, 0], "block_reduce.py: NOT REPORTED: HAZARDS 3"),
    ],
    ids=[
        *("hazards", "hazards-and-exit-0", "tool-failed", "killed", "no-summary", "wrong-result"),
        *("cannot-fail", "control-broken", "tool-failed-in-the-copy", "race-of-another-kernel"),
    ],
)
def test_nothing_else_passes(tool: Any, capsys: pytest.CaptureFixture[str], own: Any, copy: Any, line: str) -> None:
    """Above all not a check that reports nothing where a kernel races."""
    tool({"*": [CLEAN, 0, 0], "_Z4fold": own}, {"*": copy})
    assert main([]) == 1
    out = squeezed(capsys.readouterr().out)
    assert line in out
    assert out.splitlines()[-1].startswith("NO VERDICT" if "planted" in line or "NOT REPORTED" in line else "NOT CLEAN")


def test_a_kernel_that_was_launched_by_another_name_was_not_looked_at(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter made of another process's names may fit nothing."""
    tool({"*": [CLEAN, 0, 0]}, {"*": [CLEAN, 0, 0]}, launched=[kernel | {"entry": f"_{kernel['entry']}"} for kernel in KERNELS])
    assert main([]) == 1
    out = squeezed(capsys.readouterr().out)
    assert "fold 64 NOT LOOKED AT" in out
    assert "NOT REPORTED: NOT LOOKED AT" in out
    assert "NO VERDICT" in out


def test_a_check_without_a_planted_race_is_none(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool({"*": [CLEAN, 0, 0]}, {"*": [FOUND, 9, 0]})
    monkeypatch.setattr(race_checks, "DAMAGES", ())
    assert main([]) == 1
    assert "NO VERDICT" in capsys.readouterr().out


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
    assert named[-3:] == ["--kernel-name", "kns=_Z4fold$a", "x"]
    assert regex[-3:] == ["--kernel-regex", r"kns=_Z4fold\$a", "x"]


def test_a_kernel_is_found_whatever_was_compiled_before_it() -> None:
    """The number that Numba gives it is part of its name."""
    entry = "_ZN7kernels7project16project_residualB4v159B112cw51cXTLSUwv1sDUaKthqaNg_3dE5ArrayIfLi2E1C7mutable7alignedE"
    assert unnumbered(entry) == "_ZN7kernels7project16project_residualB"
    tap = entry.replace("16project_residual", "20project_residual_tap")
    assert not tap.startswith(unnumbered(entry))
    assert Sanitizer("cs", "racecheck", "--kernel-name").command([entry], ["x"])[-2] == f"kns={unnumbered(entry)}"


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damage_is_a_barrier_less(damage: Damage) -> None:
    before, after = (ROOT / damage.file).read_text(), damage.damaged()
    ast.parse(after)
    different = [line for line, other in zip(after.splitlines(), before.splitlines(), strict=True) if line != other]
    assert [line.strip() for line in different] == ["pass"]


def test_a_copy_is_the_same_program_but_for_its_damage(tmp_path: Path) -> None:
    """And its workload is beside it."""
    damage = DAMAGES[0]
    damage.copy_to(tmp_path)
    for path in sorted((tmp_path / "kernels").glob("*.py")):
        own = path == tmp_path / damage.file
        assert path.read_text() == (damage.damaged() if own else (ROOT / "kernels" / path.name).read_text())
    assert (tmp_path / "tests" / "sanitize" / "workload.py").exists()


def test_a_source_that_has_moved_on_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kernels/tile.py: the text to damage occurs 0 times"):
        Damage("fold", "kernels/tile.py", "no such text", "").copy_to(tmp_path)


def test_clusters_are_of_one_block_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernel every time, so that it is compiled once."""
    bound: list[Any] = []
    stream = SimpleNamespace(bind_launch=lambda stream, kernel, *rest: bound.append((kernel, rest)))
    monkeypatch.setitem(sys.modules, "runtime.cuda_stream", stream)
    monkeypatch.setattr(runtime, "cuda_stream", stream, raising=False)
    wide = replace(top_candidates, cluster=8)
    with clusters_of_one():
        stream.bind_launch("s", wide, 1, 32, ())
        stream.bind_launch("s", wide, 2, 32, ())
    stream.bind_launch("s", wide, 3, 32, ())
    assert [kernel.cluster for kernel, _ in bound] == [1, 1, 8]
    assert bound[0][0] is bound[1][0]
    assert bound[0][0].jit is wide.jit
    assert [rest[0] for _, rest in bound] == [1, 2, 3]


def test_drafts_of_the_workload_are_accepted_in_part(tmp_path: Path) -> None:
    found = run(tmp_path, model__dtype="float32")
    assert 0 < found["accepted"] < found["drafted"]
