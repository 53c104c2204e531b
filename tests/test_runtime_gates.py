"""Gates G1 and G2: green on the product, red on runners that are wrong, and honest about what they did not measure."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from runtime.gates import g2, gates
from runtime.gates.case import Case
from runtime.gates.case_run import CaseRun, run_case
from runtime.gates.emit_budget import emission_cases, measure_emission
from runtime.gates.gates import run_gate
from runtime.gates.matrix import pairwise, sampled
from runtime.gates.table import render_reports
from runtime.gates.verdict import Axis, GateReport, Ledger, Verdict
from runtime.runner import Runner
from tests import toy_runners
from tests.gate_reports import EXECUTOR, SPECULATIVE, report_of


def red(report: GateReport) -> set[str]:
    """Axes that are not satisfied."""
    return {axis.name for axis in report.axes if axis.verdict is not Verdict.SATISFIED}


def texts(run: CaseRun) -> list[tuple[tuple[int, ...], str]]:
    return [(output.token_ids, output.finish_reason) for generation in run.generations if (output := generation.output) is not None]


# --- the product ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*pairwise()[::4], *sampled(8, seed=3)], ids=str)
def test_the_product_passes(case: Case) -> None:
    """A part of the matrix, so that a plain test run sees a defect; all of it is `draftgraph gates`."""
    for gate in ("G1", "G2") if case.k else ("G1",):
        report = report_of(gate, case)
        assert report.verdict is Verdict.SATISFIED, render_reports([report])


@pytest.mark.parametrize("seed", range(20))
def test_twenty_random_schedules(seed: int) -> None:
    case = Case(
        speculator=("scripted", "ngram")[seed % 2],
        k=(1, 3, 5, 7)[seed % 4],
        batch=4,
        accept="ragged",
        event=("reuse", "preempt", "skip", "cancel")[seed // 5],
        steps_in_flight=2 + seed % 2,
        policy=("discrete", "integrated")[seed // 2 % 2],
        schedule="random",
        seed=seed,
    )
    report = report_of("G1", case)
    assert report.verdict is Verdict.SATISFIED, render_reports([report])


@pytest.mark.parametrize("event", ["none", "preempt", "cancel"])
@pytest.mark.parametrize("policy", ["discrete", "integrated"])
def test_every_mode_yields_the_same_rows(event: str, policy: str) -> None:
    """Graph or eager, one step ahead or none, any schedule: what each request gets is the same, token by token."""
    cases = [
        Case(k=3, batch=3, accept="random", event=event, policy=policy, mode=mode, steps_in_flight=ahead, schedule=schedule, seed=6)
        for mode, ahead, schedule in itertools.product(("graph", "eager"), (1, 2), ("eager", "lazy", "random"))
    ]
    results = [texts(run_case(case, EXECUTOR)) for case in cases]
    if event == "cancel":  # how far a request gets before its cancel is a matter of when its tokens arrive
        results = [[text for text in result if text[1] != "cancelled"] for result in results]
        assert all(Counter(one) & Counter(other) for one, other in itertools.pairwise(results))
        return
    assert all(result == results[0] for result in results)


# --- G2: the silent class ------------------------------------------------------------------------------------------------------


def test_wrong_drafts_leave_the_text_alone_and_turn_g2_red() -> None:
    right, wrong = run_case(SPECULATIVE, EXECUTOR), run_case(SPECULATIVE, EXECUTOR, runner_type=toy_runners.WrongDraftsRunner)
    assert texts(right) == texts(wrong)
    assert len(wrong.steps) > len(right.steps)
    report = report_of("G2", SPECULATIVE, toy_runners.WrongDraftsRunner)
    assert red(report) == {"fed = drafted", "fed = computed"}
    finding = next(finding for finding in report.findings if finding.axis == "fed = drafted")
    assert finding.message.startswith("input_token_ids, step ")
    for part in ("request-0 (slot 0)", ", position ", "fed ", "proposed in step "):
        assert part in finding.message
    assert f'draftgraph gates G2 --case "{SPECULATIVE}"' in render_reports([report])


def test_wrong_drafts_turn_the_emit_count_red_in_g1() -> None:
    report = report_of("G1", SPECULATIVE, toy_runners.WrongDraftsRunner)
    assert red(report) == {"emitted counts"}
    case = emission_cases()[2]
    emission = measure_emission(case, EXECUTOR, toy_runners.WrongDraftsRunner)
    assert case.accept == "all"
    assert emission.emitted < emission.computed


def test_the_first_difference_is_reported_where_it_is() -> None:
    """By hand: the step, slot and position of the first finding are those of the first verify row that has drafts."""
    run = run_case(SPECULATIVE, EXECUTOR, tapes=True, runner_type=toy_runners.WrongDraftsRunner)
    ledger = Ledger()
    g2.check_g2(run, ledger)
    step, row = next(
        (number, row) for number, step in enumerate(run.steps) for row in step.plan.rows if not row.is_prefilling
    )
    assert run.tapes is not None
    position = run.tapes.fed[step][0].position + 1
    assert ledger.findings[0].message.startswith(
        f"input_token_ids, step {step}, {row.request_id} (slot {row.slot}), position {position}: fed "
    )


# --- G1: wrong runners ---------------------------------------------------------------------------------------------------------


def test_a_skipped_proposal_is_red() -> None:
    report = report_of("G1", SPECULATIVE, toy_runners.NoProposalAfterPrefillRunner)
    assert {"one proposal a step", "first decode drafts", "emitted counts"} <= red(report)
    assert "token identity" not in red(report)
    assert "a record a step" in red(report_of("G2", SPECULATIVE, toy_runners.NoProposalAfterPrefillRunner))


def test_routing_by_shape_is_red() -> None:
    report = report_of("G1", Case(k=3, batch=4, prompt="k+1", seed=1), toy_runners.ShapeRoutedRunner)
    assert "graph family" in red(report)


def test_a_wait_in_the_step_is_red() -> None:
    report = report_of("G1", SPECULATIVE, toy_runners.DrainingRunner)
    assert red(report) == {"no synchronisation", "overlap"}


def test_the_overlap_is_exact_under_the_lazy_schedule_and_not_judged_under_others() -> None:
    """The product runs nothing behind the outcome that it collects, and everything in front of it."""
    for ahead, mode, policy in itertools.product((1, 2, 3), ("graph", "eager"), ("discrete", "integrated")):
        run = run_case(replace(SPECULATIVE, steps_in_flight=ahead, mode=mode, policy=policy), EXECUTOR)
        assert [step.queued for step in run.steps] == [step.needless for step in run.steps]
        assert all(0 < step.num_proposing < step.num_operations for step in run.steps)
        assert max(step.behind for step in run.steps) == ahead - 1
    for schedule in ("eager", "random"):
        assert "overlap" not in {axis.name for axis in report_of("G1", replace(SPECULATIVE, schedule=schedule)).axes}


def test_a_graph_of_another_size_is_red() -> None:
    class LargestProposal(Runner):
        def _propose_key(self, step, rows, proposes=True):  # type: ignore[no-untyped-def]
            return super()._propose_key(step, self.buckets.sizes[-1], proposes)

    assert red(report_of("G1", replace(SPECULATIVE, batch=4, event="none"), LargestProposal)) == {"graph size"}


def test_an_error_of_the_engine_is_a_finding() -> None:
    class Broken(Runner):
        def launch(self, plan):  # type: ignore[no-untyped-def]
            raise RuntimeError("no more")

    report = report_of("G1", SPECULATIVE, Broken)
    assert red(report) == {"runs to its end"}
    assert "RuntimeError: no more" in report.findings[0].message


# --- poison --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["discrete", "integrated"])
def test_poisoned_host_twins_change_nothing(policy: str) -> None:
    """Every array that only the device writes is overwritten on the host at every step: nobody reads it there."""
    case = Case(k=3, batch=3, accept="ragged", event="reuse", policy=policy, seed=2)  # seed 2: poison is off otherwise
    assert not case.options().poison
    clean, poisoned = (run_case(case, EXECUTOR, runner_type=kind) for kind in (Runner, toy_runners.PoisoningRunner))
    assert texts(clean) == texts(poisoned)
    assert [step.result for step in clean.steps] == [step.result for step in poisoned.steps]


# --- verdicts ------------------------------------------------------------------------------------------------------------------


def test_verdicts() -> None:
    assert Verdict.of(None, 1.0) is Verdict.NOT_MEASURED
    assert Verdict.of(0.5, None) is Verdict.RECORDED
    assert Verdict.of(1.0, 1.0) is Verdict.SATISFIED
    assert Verdict.of(0.99, 1.0) is Verdict.OPEN_GAP
    names = ["SATISFIED", "RECORDED, no floor declared", "UNDER THE FLOOR", "NOT MEASURED", "OPEN GAP", "TAUTOLOGICAL"]
    assert [verdict.value for verdict in Verdict] == names


def test_the_worst_axis_is_the_verdict() -> None:
    good, absent = Axis("a", 1.0, 1.0, ""), Axis("b", None, 1.0, "")
    assert GateReport("G1", "", (good,), (), {}).verdict is Verdict.SATISFIED
    assert GateReport("G1", "", (good, absent), (), {}).verdict is Verdict.NOT_MEASURED
    assert GateReport("G1", "", (), (), {}).verdict is Verdict.NOT_MEASURED


def test_an_axis_that_nobody_checked_is_not_measured() -> None:
    ledger = Ledger()
    ledger.check("x", True, "case", "")
    assert Axis.of_checks("x", ledger).verdict is Verdict.SATISFIED
    assert Axis.of_checks("y", ledger).verdict is Verdict.NOT_MEASURED
    ledger.check("x", False, "case", "why")
    assert Axis.of_checks("x", ledger).verdict is Verdict.OPEN_GAP


def test_a_matrix_that_takes_no_path_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole gate over tame cases: everything holds, and it is an open gap because preemptions and the like never happened."""
    monkeypatch.setattr(gates, "default_cases", lambda gate: [Case(k=1, batch=1, prompt="1", stop="max_tokens")])
    monkeypatch.setattr(gates, "emission_cases", lambda: [])
    report = run_gate("G1", EXECUTOR)
    assert {"paths covered", "emit budget"} <= red(report)
    assert "preemptions" in next(axis.detail for axis in report.axes if axis.name == "paths covered")
