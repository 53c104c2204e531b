"""The catalogue of mutations is whole and fits the sources, its runner can say no, and a sample of it is red."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import __main__ as command
from tests.mutants.catalogue import MUTATIONS
from tests.mutants.hazards import ENTRIES, WITHOUT_MUTANT
from tests.mutants.ledger import Ledger
from tests.mutants.mutation import Edit, Mutation, SourceMovedError, gated, mutation
from tests.mutants.table import page
from tests.mutants.tree import ROOT, Run, Tree
from tests.mutants.trial import BROKEN, OTHER, RED, SURVIVED, NotGreenError, Verdict, judge, judge_gate, run_all

SAMPLE, SEED = 4, 3
RING = "tests/test_runtime_staging.py::test_submit_is_consecutive"


def harmless(**changes: str) -> Mutation:
    """An edit that changes nothing."""
    edit = {"file": "runtime/staging.py", "old": "self._collected += 1", "new": "self._collected = self._collected + 1"} | changes
    return mutation("harmless", "9a-1", edit["file"], edit["old"], edit["new"], test=changes.get("test", RING), text="equal")


def test_names_are_distinct_and_said_in_words() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z]+(-[a-z]+)+", name)] == []
    assert len(names) >= 60


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_source_and_the_test_are_there(mutation: Mutation) -> None:
    for file, source in mutation.apply(ROOT).items():
        assert source != (ROOT / file).read_text()
        compile(source, file, "exec")
        assert not file.startswith("tests/"), "a mutation damages the product, not its tests"
    if not mutation.gate:
        file, _, function = mutation.test.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text()


def test_every_named_test_is_collected_with_its_parameters() -> None:
    named = sorted({mutation.test for mutation in MUTATIONS if not mutation.gate})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert collected.returncode == 0, collected.stderr[-2000:]


def test_every_hazard_has_a_mutant_or_a_reason() -> None:
    covered = {mutation.hazard for mutation in MUTATIONS}
    assert covered & WITHOUT_MUTANT.keys() == set()
    assert ENTRIES - covered - WITHOUT_MUTANT.keys() == set()
    assert (covered | WITHOUT_MUTANT.keys()) - ENTRIES == set()


def test_a_source_that_has_moved_on_is_named() -> None:
    with pytest.raises(SourceMovedError, match=r"runtime/staging\.py: the text to replace occurs 0 times"):
        run_all([harmless(old="no such text")])
    with pytest.raises(SourceMovedError, match=r"occurs \d+ times, must be once"):
        Edit("runtime/staging.py", "self", "").apply((ROOT / "runtime/staging.py").read_text())


def test_edits_of_one_file_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\n")
    edits = (Edit("a.py", "one", "two"), Edit("a.py", "two = 1", "two = 2"))
    assert Mutation("m", "9a-1", edits, RING, "").apply(tmp_path) == {"a.py": "two = 2\n"}
    assert (tmp_path / "a.py").read_text() == "one = 1\n"


def test_survivors_and_broken_mutants_are_not_red() -> None:
    broken = mutation(
        "broken", "9a-1", "runtime/staging.py", "class OutcomeRing:", "class OutcomeRung:", test=RING, text="no import works"
    )
    another = mutation(
        "another",
        "9a-1",
        "runtime/staging.py",
        '!= self._next:\n            raise MirrorError(f"{self.name}: step = {step}, but step',
        '< 0:\n            raise MirrorError(f"{self.name}: step = {step}, but step',
        test=RING,
        text="it goes red because nothing was raised",
        expects="no such words",
    )
    assert [verdict.outcome for verdict in run_all([harmless(), broken, another])] == [SURVIVED, BROKEN, OTHER]


def test_a_named_test_must_be_green_by_itself() -> None:
    with pytest.raises(NotGreenError, match=r"(?s)without any mutation.*(not found|no tests ran)"):
        run_all([harmless(test="tests/test_runtime_staging.py::test_no_such_test")])


@pytest.mark.parametrize(
    ("exit_code", "output", "outcome"),
    [
        (0, "1 passed", SURVIVED),
        (1, "E   AssertionError: 3\nFAILED tests/a.py", RED),
        (1, "assert 3 == 4\nE   ImportError: x\nFAILED tests/a.py", OTHER),
        (1, "E   AssertionError: 3\nERROR tests/a.py", BROKEN),
        (2, "E   AssertionError: 3\nFAILED tests/a.py", BROKEN),
        (-1, "no end after 300 s", BROKEN),
    ],
)
def test_judge(exit_code: int, output: str, outcome: str) -> None:
    assert judge(harmless(), Run(exit_code, output, 1.0)).outcome == outcome


@pytest.mark.parametrize(
    ("exit_code", "findings", "silent", "outcome"),
    [
        (0, [], False, SURVIVED),
        (1, [("G1", "races", "Race on `x`")], False, RED),
        (1, [("G1", "races", "Race on `y`")], False, OTHER),
        (1, [("G2", "races", "Race on `x`")], False, OTHER),
        (1, [("G1", "races", "Race on `x`"), ("G1", "token identity", "3, not 4")], True, OTHER),
        (1, [("G1", "races", "Race on `x`"), ("G1", "graph family", "mixed")], True, RED),
        (1, None, False, BROKEN),
    ],
)
def test_judge_of_a_gate(exit_code: int, findings: list[tuple[str, str, str]] | None, silent: bool, outcome: str) -> None:
    mutant = gated("m", "9a-1", Edit("a", "b", "c"), gate="G1", axis="races", text="", expects="`x`", silent=silent)
    output = "Traceback"
    if findings is not None:
        reports = [
            {"gate": gate, "findings": [{"axis": axis, "message": text} for at, axis, text in findings if at == gate]}
            for gate in ("G1", "G2")
        ]
        output = json.dumps({"gates": reports})
    assert judge_gate(mutant, Run(exit_code, output, 1.0)).outcome == outcome


def test_the_page_has_a_row_for_each() -> None:
    text = page([Verdict(mutation, RED, 1.25) for mutation in MUTATIONS])
    assert f"{len(MUTATIONS)} mutants, {len(MUTATIONS)} red, 0 not." in text
    assert [mutant.name for mutant in MUTATIONS if f"| {mutant.name} | {mutant.hazard} |" not in text] == []


def test_what_was_red_is_not_tried_again_until_the_sources_change(tmp_path: Path) -> None:
    red, alive = (replace(harmless(), name=name) for name in ("it-was-red", "it-survived"))
    file = tmp_path / "new" / "ledger.jsonl"
    ledger = Ledger(file, "sources")
    assert ledger.known([red, alive]) == {}
    ledger.note(Verdict(red, RED, 2.5))
    ledger.note(Verdict(alive, SURVIVED, 1.0))
    assert Ledger(file, "sources").known([red, alive]) == {"it-was-red": Verdict(red, RED, 2.5)}
    assert Ledger(file, "sources").known([replace(red, expects="another reason")]) == {}
    assert Ledger(file, "other sources").known([red]) == {}


def test_a_run_says_how_far_it_is_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue = [replace(harmless(), name=name) for name in ("first-of-them", "second-of-them", "third-of-them")]
    tried: list[list[str]] = []

    def run_two(mutations: Sequence[Mutation], *, report: Any, green: Any, **options: Any) -> list[Verdict]:
        tried.append([mutant.name for mutant in mutations])
        green(1, 1)
        for mutant in mutations[:2]:
            report(Verdict(mutant, RED, 1.0))
        if len(mutations) > 2:
            raise KeyboardInterrupt
        return [Verdict(mutant, RED, 1.0) for mutant in mutations]

    monkeypatch.setattr(command, "MUTATIONS", catalogue)
    monkeypatch.setattr(command, "Ledger", lambda: Ledger(tmp_path / "ledger.jsonl", "sources"))
    monkeypatch.setattr(command, "PAGE", tmp_path / "mutants.md")
    monkeypatch.setattr(command, "run_all", run_two)
    assert command.main([]) == 130
    assert not (tmp_path / "mutants.md").exists()
    assert command.main([]) == 0
    assert tried == [[mutant.name for mutant in catalogue], ["third-of-them"]]
    said = capsys.readouterr().out
    assert "[1/3, " in said
    assert "2 of 3 were red before" in said
    assert "3 mutants, 3 red, 0 not." in (tmp_path / "mutants.md").read_text()
    assert command.main(["--anew"]) == 130
    assert len(tried[-1]) == 3


def test_an_interrupt_ends_with_the_trials_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool waits for its threads: without a word to them they would go through the whole catalogue."""
    trials: list[str] = []

    def interrupt(verdict: Verdict) -> None:
        trials.append(verdict.mutation.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tree, "pytest", lambda self, tests, **options: Run(0, "", 0.0))
    with pytest.raises(KeyboardInterrupt):
        run_all([replace(harmless(), name=f"m-{number}") for number in "abcdef"], workers=1, report=interrupt)
    assert trials == ["m-a"]


def test_a_sample_is_red() -> None:
    """`make mutants` runs them all. One of a gate and some of tests are in the sample, none that compiles kernels or whose test
    runs an engine: each would take ten seconds."""
    cheap, luck = [mutation for mutation in MUTATIONS if not mutation.recompiles], random.Random(SEED)
    tested = [mutation for mutation in cheap if not mutation.gate and not re.search("engine|dflash|smollm2", mutation.test)]
    gates = [mutation for mutation in cheap if mutation.gate]
    verdicts = run_all([*luck.sample(tested, SAMPLE - 1), luck.choice(gates)])
    assert [str(verdict) for verdict in verdicts if not verdict.killed] == []
