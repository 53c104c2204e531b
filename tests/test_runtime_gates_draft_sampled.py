"""docs/draft-sampled.md as tests: what a host read of the compared drafts does when it is right, shifted, late or empty."""

from __future__ import annotations

import pytest

from graphs.cpu_executor import CpuExecutor
from kernels.toy import ACCEPT, REJECT
from runtime.gates.case import Case
from runtime.gates.case_run import CaseRun, run_case
from runtime.gates.g1 import check_g1
from runtime.gates.g2 import check_g2
from runtime.gates.toy_engine import ToyOptions, open_toy
from runtime.gates.verdict import Ledger
from runtime.mirror_errors import StaleReadError
from runtime.runner import Runner
from runtime.sampling import SamplingParams
from tests import toy_runners

EXECUTOR = CpuExecutor()
RIGHT_DRAFTS = [Case(k=3, batch=3, accept="all", seed=seed) for seed in (1, 3, 4)]
MIXED = (("random", 1), ("alternating", 4), ("alternating", 6))
MIXED_DRAFTS = [Case(k=3, batch=3, accept=accept, seed=seed) for accept, seed in MIXED]


def run(case: Case, runner_type: type[Runner]) -> tuple[CaseRun, set[str]]:
    """The run, and the axes of both gates that it turned red."""
    result = run_case(case, EXECUTOR, tapes=True, runner_type=runner_type)
    ledger = Ledger()
    check_g1(result, ledger)
    check_g2(result, ledger)
    return result, {finding.axis for finding in ledger.findings}


def accepted(result: CaseRun) -> int:
    """Drafts accepted in all verify rows."""
    return sum(
        max(0, step.result.num_sampled[index] - 1)
        for step in result.steps
        if step.result is not None
        for index, row in enumerate(step.plan.rows)
        if not row.is_prefilling
    )


@pytest.mark.parametrize("case", [*RIGHT_DRAFTS, *MIXED_DRAFTS], ids=str)
def test_the_device_read_is_right_and_waits_for_nothing(case: Case) -> None:
    _, red = run(case, Runner)
    assert red == set()


@pytest.mark.parametrize("case", [*RIGHT_DRAFTS, *MIXED_DRAFTS], ids=str)
def test_an_exact_host_read_is_as_right_and_costs_a_wait(case: Case) -> None:
    """The committed slot, which the host leaves at 0, is not compared: nothing but the wait is wrong with it."""
    device, _ = run(case, Runner)
    host, red = run(case, toy_runners.ExactHostReadRunner)
    assert red == {"no synchronisation", "overlap"}
    assert [step.result for step in host.steps] == [step.result for step in device.steps]


@pytest.mark.parametrize("case", RIGHT_DRAFTS, ids=str)
@pytest.mark.parametrize("runner_type", [toy_runners.StaleHostReadRunner, toy_runners.PlaceholderHostReadRunner])
def test_where_every_fed_draft_is_right_a_wrong_read_costs_acceptance_only(case: Case, runner_type: type[Runner]) -> None:
    """An id is accepted only where it equals the target's own, and that is what was fed: the text cannot tell."""
    device, _ = run(case, Runner)
    host, red = run(case, runner_type)
    assert "token identity" not in red
    assert {"compared = fed", "emitted counts"} <= red
    assert accepted(host) * 5 < accepted(device)


@pytest.mark.parametrize("case", [*RIGHT_DRAFTS, *MIXED_DRAFTS], ids=str)
def test_placeholders_accept_nothing_and_keep_the_text(case: Case) -> None:
    """-1 is no token: whatever was fed, each row yields the target's own next token."""
    host, red = run(case, toy_runners.PlaceholderHostReadRunner)
    assert accepted(host) == 0
    assert "token identity" not in red
    assert {"compared = fed", "emitted counts"} <= red


@pytest.mark.parametrize("case", MIXED_DRAFTS, ids=str)
def test_a_late_read_makes_wrong_text_where_some_fed_drafts_are_wrong(case: Case) -> None:
    """It accepts an id that was not fed: the rows behind it were computed from another token."""
    _, red = run(case, toy_runners.StaleHostReadRunner)
    assert {"token identity", "compared = fed"} <= red


def test_wrong_text_token_by_token() -> None:
    """Text 5 5 5 5 (7 * 5 mod 31 + 1 = 5), drafts 5 6 5 6...: a 5 is accepted where a 6 was fed; 12 = 7 * 6 mod 31 + 1 follows."""
    script = tuple(REJECT if position % 2 else ACCEPT for position in range(8))
    options = ToyOptions(
        num_slots=1, k=3, max_model_len=24, max_num_batched_tokens=8, num_blocks=6, script=(script,), memory=False
    )
    texts = []
    for kind in (Runner, toy_runners.StaleHostReadRunner):
        toy = open_toy(options, EXECUTOR, kind)
        texts.append(list(toy.engine.generate([[5]], SamplingParams(max_tokens=12))[0].token_ids))
        toy.engine.close()
    right, wrong = texts
    assert right == [5] * 12
    assert wrong != right
    first = next(i for i, token in enumerate(wrong) if token != 5)
    assert wrong[first] == 12


def test_the_index_steps_over_the_committed_id() -> None:
    """Without the 1 in cu + 1 + i the walk compares each row with the draft before: distinct ids hardly ever match."""
    device, _ = run(RIGHT_DRAFTS[0], Runner)
    shifted, red = run(RIGHT_DRAFTS[0], toy_runners.ShiftedHostReadRunner)
    assert accepted(shifted) * 5 < accepted(device)
    assert "compared = fed" in red


def test_the_mirror_refuses_the_host_read() -> None:
    """In the product nobody gets that far: the host copy of the input ids is older than the device's after a combine."""
    toy = open_toy(RIGHT_DRAFTS[0].options(), EXECUTOR)
    toy.engine.submit([1, 2, 3], SamplingParams(max_tokens=9))
    toy.engine.step()
    for name in ("input_token_ids", "draft_tokens"):
        with pytest.raises(StaleReadError, match=name):
            toy.runner.table[name].read_host()
    toy.engine.close()
