"""Rows of nothing, as the scheduler hears of them: the request ends in front of one, except where its token is known already."""

from __future__ import annotations

from runtime.kv_cache import BlockAllocator
from runtime.plan import NOT_FINISHED, StepResult
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.scheduler_limits import SchedulerLimits

PROMPT = [5, 6, 7]


def in_a_slot(k: int) -> tuple[Scheduler, Request]:
    """A sampled request whose first token, 9, has been collected."""
    scheduler = Scheduler(SchedulerLimits(2, 32, 16, k, replay=True), BlockAllocator(16, 4), clock=lambda: 1.0)
    request = Request("r", PROMPT, SamplingParams(max_tokens=8, temperature=1.0, seed=1))
    scheduler.add(request)
    step(scheduler, [9], nothing_left=0)
    return scheduler, request


def step(scheduler: Scheduler, token_ids: list[int], nothing_left: int, drafts: int = 0) -> list[tuple[list[int], str | None]]:
    """One step that yields these tokens, the one of place `nothing_left` - 1 standing for nothing: what came of it."""
    plan = scheduler.schedule()
    assert plan is not None
    result = StepResult([token_ids], [len(token_ids)], [drafts], [NOT_FINISHED], [nothing_left])
    updates = scheduler.update(plan, result)
    scheduler.check_integrity()
    return [(list(update.token_ids), update.finish_reason) for update in updates]


def test_it_ends_in_front_of_the_row() -> None:
    scheduler, request = in_a_slot(k=3)
    assert step(scheduler, [4, 3, 0], nothing_left=3, drafts=3) == [([4, 3], "error")]
    assert (request.output_token_ids, request.finish_reason) == ([9, 4, 3], "error")
    assert request.acceptance.histogram == scheduler.acceptance.histogram == [0, 0, 1, 0]


def test_at_once_behind_no_draft() -> None:
    scheduler, request = in_a_slot(k=3)
    assert step(scheduler, [0], nothing_left=1, drafts=2) == [([], "error")]
    assert request.acceptance.histogram == scheduler.acceptance.histogram == [1, 0, 0, 0]


def test_a_token_that_is_replayed_is_known() -> None:
    """Back from a preemption the last token comes once more, whatever its row is worth by now; the rows behind it count."""
    scheduler, request = in_a_slot(k=0)
    scheduler._queue.preempt_latest()
    assert step(scheduler, [9], nothing_left=1) == []
    assert (request.output_token_ids, request.is_finished) == ([9], False)
    assert step(scheduler, [0], nothing_left=1) == [([], "error")]
