"""Apply mutations one by one and say of each whether the test that it names went red, and for its own reason."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.mutation import Mutation
from tests.mutants.tree import Run, Tree

RED, SURVIVED, OTHER, BROKEN = "red", "SURVIVED", "RED FOR ANOTHER REASON", "BROKEN"
TESTS_AT_A_TIME = 15
Report = Callable[["Verdict"], None]


class NotGreenError(RuntimeError):
    """A test that mutations name fails, or is not there, without any mutation: it can show nothing."""


@dataclass(frozen=True)
class Verdict:
    """Attributes:
    seconds: of the trial, compilation included.
    detail: why it is not red, empty otherwise.
    """

    mutation: Mutation
    outcome: str
    seconds: float
    detail: str = ""

    @property
    def killed(self) -> bool:
        return self.outcome == RED

    def __str__(self) -> str:
        line = f"{self.mutation.name}: {self.outcome} in {self.seconds:.1f} s by {self.mutation.killer}"
        return f"{line}\n{self.detail}" if self.detail else line


def run_all(
    mutations: Sequence[Mutation],
    *,
    workers: int = 2,
    report: Report = lambda verdict: None,
    green: Callable[[int, int], None] = lambda done, total: None,
) -> list[Verdict]:
    """One verdict for each mutation, in their order.

    Args:
        report: hears each verdict. green: hears how many of a worker's tests were run without a mutation, and of how many.

    Raises:
        SourceMovedError: a mutation does not fit its source; before anything runs.
        NotGreenError: a named test is not green without a mutation.
    """
    workers = max(1, min(workers, len(mutations)))
    with tempfile.TemporaryDirectory(prefix="draftgraph-mutants-") as folder:
        shares = _shares(mutations, workers)
        trees = [_tree(Path(folder), worker) for worker in range(workers)]
        mutated = {mutation.name: mutation.apply(trees[0].path) for mutation in mutations}
        verdicts: dict[str, Verdict] = {}
        stopped = threading.Event()

        def work(tree: Tree, share: Sequence[Mutation]) -> None:
            for mutation in share:
                if stopped.is_set():
                    return
                with tree.mutated(mutated[mutation.name]):
                    run = tree.gates() if mutation.gate else tree.pytest([mutation.test])
                verdict = judge_gate(mutation, run) if mutation.gate else judge(mutation, run)
                verdicts[mutation.name] = verdict
                report(verdict)

        def unmutated(tree: Tree, share: Sequence[Mutation]) -> Run:
            return _unmutated(tree, share, green, stopped)

        with ThreadPoolExecutor(workers) as pool:
            try:
                for run in pool.map(unmutated, trees, shares):
                    if run.exit_code:
                        raise NotGreenError(f"without any mutation:\n{run.output}")
                list(pool.map(work, trees, shares))
            finally:
                stopped.set()  # behind an interrupt the pool waits for its threads: they end with what they are at
    return [verdicts[mutation.name] for mutation in mutations]


def _shares(mutations: Sequence[Mutation], workers: int) -> list[list[Mutation]]:
    """Mutations by worker, of about equal cost. Those that one test kills stay together: a tree runs that test once unmutated."""
    groups: dict[str, list[Mutation]] = {}
    for mutation in mutations:
        groups.setdefault(mutation.gate or mutation.test, []).append(mutation)
    if {"G1", "G2"} <= groups.keys():
        groups["G1"] += groups.pop("G2")  # one run has the verdicts of both
    shares: list[list[Mutation]] = [[] for _ in range(workers)]
    for group in sorted(groups.values(), key=_cost, reverse=True):
        min(shares, key=_cost).extend(group)
    return shares


def _cost(mutations: Sequence[Mutation]) -> int:
    """In trials that compile nothing."""
    return sum(2 if mutation.recompiles or mutation.gate else 1 for mutation in mutations)


def _tree(folder: Path, worker: int) -> Tree:
    path = folder / str(worker)
    path.mkdir()
    return Tree(path)


def _unmutated(
    tree: Tree, mutations: Sequence[Mutation], green: Callable[[int, int], None], stopped: threading.Event
) -> Run:
    """Every test that is named, so that it is known to be green, and the kernels that it needs are compiled. So many at a time that
    none runs into the limit of a run."""
    run = Run(0, "", 0.0)
    tests = sorted({mutation.test for mutation in mutations if not mutation.gate})
    for first in range(0, len(tests), TESTS_AT_A_TIME):
        run = tree.pytest(tests[first : first + TESTS_AT_A_TIME], first_failure=False)
        if run.exit_code or stopped.is_set():
            return run
        green(min(first + TESTS_AT_A_TIME, len(tests)), len(tests))
    if run.exit_code == 0 and any(mutation.gate for mutation in mutations):
        run = tree.gates()
    return run


def judge(mutation: Mutation, run: Run) -> Verdict:
    """RED needs a failed test (exit code 1, not a collection that failed) whose output holds what the mutation expects."""
    if run.exit_code == 0:
        return Verdict(mutation, SURVIVED, run.seconds, f"  {mutation.text}")
    failed = run.exit_code == 1 and re.search(r"^FAILED ", run.output, re.MULTILINE)
    if not failed:
        return Verdict(mutation, BROKEN, run.seconds, run.output)
    # What pytest marks with E is the error itself, not the source around it, which may hold the words by chance.
    errors = "\n".join(line for line in run.output.splitlines() if line.startswith("E "))
    if not re.search(mutation.expects, errors):
        return Verdict(mutation, OTHER, run.seconds, f"expected /{mutation.expects}/ in\n{run.output}")
    return Verdict(mutation, RED, run.seconds)


def judge_gate(mutation: Mutation, run: Run) -> Verdict:
    """RED needs a finding on the axis, with the expected words; a silent mutation must leave the token identity of G1 alone."""
    if run.exit_code == 0:
        return Verdict(mutation, SURVIVED, run.seconds, f"  {mutation.text}")
    try:
        reports = {report["gate"]: report for report in json.loads(run.output)["gates"]}
    except (ValueError, KeyError):
        return Verdict(mutation, BROKEN, run.seconds, run.output)
    findings = [finding for finding in reports[mutation.gate]["findings"] if finding["axis"] == mutation.test]
    if not any(re.search(mutation.expects, finding["message"]) for finding in findings):
        return Verdict(mutation, OTHER, run.seconds, f"expected /{mutation.expects}/ on {mutation.killer}\n{_summary(reports)}")
    text = [finding for finding in reports["G1"]["findings"] if finding["axis"] in ("token identity", "runs to its end")]
    if mutation.silent and text:
        return Verdict(mutation, OTHER, run.seconds, f"not silent: {text[0]['message']}")
    return Verdict(mutation, RED, run.seconds)


def _summary(reports: Mapping[str, Any]) -> str:
    """The first finding of each axis."""
    first: dict[str, str] = {}
    for gate, report in reports.items():
        for finding in report["findings"]:
            first.setdefault(f"{gate} {finding['axis']}", finding["message"])
    return "\n".join(f"  {axis}: {message}" for axis, message in first.items())
