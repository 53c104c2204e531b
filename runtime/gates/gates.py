"""The gates by name: which cases each of them runs, and what it makes of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from runtime.errors import ConfigError
from runtime.gates import g1, g2
from runtime.gates.case import Case
from runtime.gates.emit_budget import emission_cases, measure_emission
from runtime.gates.matrix import full, pairwise, sampled
from runtime.gates.play import default_workers, play_apart, play_case
from runtime.gates.toy_engine import OnGpu, Venue
from runtime.gates.verdict import Axis, GateReport, Ledger
from runtime.runner import Runner

GATES = ("G1", "G2")
RANDOM_SCHEDULES = 20
SAMPLED = {"G1": 100, "G2": 60}
Progress = Callable[[int, int], None]


def default_cases(gate: str) -> list[Case]:
    """Every pair of values of any two axes, some cases drawn from the whole matrix, and twenty random schedules."""
    cases = [*pairwise(), *sampled(SAMPLED[gate])]
    schedules = sampled(RANDOM_SCHEDULES, seed=2)
    cases += [replace(case, schedule="random", seed=number) for number, case in enumerate(schedules)]
    return cases


def run_gate(
    gate: str,
    executor: Venue,
    *,
    cases: Sequence[Case] | None = None,
    everything: bool = False,
    progress: Progress = lambda done, total: None,
    runner_type: type[Runner] = Runner,
    workers: int | None = 1,
) -> GateReport:
    """Run one gate.

    Args:
        gate: G1 or G2.
        executor: of the virtual device, or OnGpu.
        cases: these only; the demands that only a whole matrix can meet are left out then.
        everything: the full matrix instead of a sample.
        runner_type: see runtime.gates.toy_engine.open_toy.
        workers: processes that play the cases, None for as many as are worth it; more than 1 only on the virtual device, with the
            runner as it is.

    Raises:
        ConfigError: no gate of that name.
    """
    if gate not in GATES:
        raise ConfigError(f"gate = {gate}: must be one of {', '.join(GATES)}")
    chosen = list(cases) if cases is not None else list(full()) if everything else default_cases(gate)
    if isinstance(executor, OnGpu):
        # No case can choose the order of a GPU; what is only exact under one schedule is not checked.
        chosen = [replace(case, schedule="eager") for case in chosen]
    if gate == "G2":
        chosen = [case for case in chosen if case.k]
        if not chosen:
            return _nothing_to_compare()
    emissions = emission_cases() if gate == "G1" and cases is None else []
    began = time.perf_counter()
    ledger, coverage, paths = Ledger(), Counter[str](), Counter[str]()
    workers = default_workers(len(chosen)) if workers is None else workers
    apart = workers > 1 and runner_type is Runner and not isinstance(executor, OnGpu)
    here = (play_case(gate, case, executor, runner_type) for case in chosen)
    for number, one in enumerate(play_apart(gate, chosen, workers) if apart else here):
        progress(number, len(chosen) + len(emissions))
        ledger.add(one.ledger)
        coverage += one.coverage
        paths += one.paths
    lengths: list[float] = []
    for number, case in enumerate(emissions):
        progress(len(chosen) + number, len(chosen) + len(emissions))
        emission = measure_emission(case, executor, runner_type)
        lengths.append(emission.mean_acceptance_length)
        text = f"{emission.emitted} tokens emitted, {emission.computed} computed from the script"
        ledger.check("emit budget", emission.emitted == emission.computed, case, text)
    progress(len(chosen) + len(emissions), len(chosen) + len(emissions))
    axes = _axes(gate, ledger, coverage, whole=cases is None)
    figures = {"cases": len(chosen) + len(emissions), **paths, "coverage": dict(sorted(coverage.items()))}
    if lengths:
        figures["mean_acceptance_length_min_max"] = [round(min(lengths), 3), round(max(lengths), 3)]
    figures["seconds"] = round(time.perf_counter() - began, 1)
    module = g1 if gate == "G1" else g2
    return GateReport(gate, module.TITLE, axes, tuple(ledger.findings), figures)


def _nothing_to_compare() -> GateReport:
    reason = "no case has drafts (k = 0), and G2 compares drafts: name one with k > 0, or run G1"
    figures = {"cases": 0, "seconds": 0.0}
    return GateReport("G2", g2.TITLE, (Axis("cases with drafts", None, 1.0, reason),), (), figures)


def _axes(gate: str, ledger: Ledger, coverage: Counter[str], *, whole: bool) -> tuple[Axis, ...]:
    names = ["runs to its end", *(g1.AXES if gate == "G1" else g2.AXES)]
    if not whole:
        # One case need not have a first decode row with drafts, or any row at all of some kind.
        return tuple(Axis.of_checks(name, ledger) for name in names if ledger.checked[name])
    if gate == "G1":
        names.append("emit budget")
    axes = [Axis.of_checks(name, ledger) for name in names]
    if gate == "G1":
        missed = [name for name in g1.MUST_COVER if not coverage[name]]
        taken = len(g1.MUST_COVER) - len(missed)
        detail = f"never taken: {', '.join(missed)}" if missed else f"{taken} of {taken} taken"
        axes.append(Axis("paths covered", taken / len(g1.MUST_COVER), 1.0, detail))
    return tuple(axes)
