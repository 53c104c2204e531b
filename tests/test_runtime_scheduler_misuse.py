"""Scheduler: what is refused, cancelled, or contradicts the plan, and what is counted."""

from __future__ import annotations

import pytest

from runtime.errors import CapacityError, ConfigError
from runtime.kv_cache import BlockAllocator
from runtime.plan import StepResult
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.scheduler_limits import SchedulerLimits
from tests.plan_executor import Loop, always, sequential_decode
from tests.scheduler_prompts import crowd, prompt


def test_what_can_never_fit_is_refused_at_add() -> None:
    loop = Loop(num_blocks=4, block_size=4, max_model_len=64)
    with pytest.raises(CapacityError, match="needs 5 KV blocks of 4 positions, but num_blocks = 4"):
        loop.add("a", prompt(16), 1)
    with pytest.raises(CapacityError, match="max_model_len = 64"):
        loop.add("b", prompt(64), 1)
    assert not loop.scheduler.has_unfinished
    loop.add("c", prompt(15), 1)
    with pytest.raises(RuntimeError, match="is in use"):
        loop.add("c", prompt(2), 1)
    loop.run()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 64, 64, 0), "max_num_seqs = 0"),
        ((4, 1, 64, 0), "max_model_len = 1"),
        ((4, 64, 64, -1), "num_speculative_tokens = -1"),
        ((4, 64, 3, 3), "max_num_batched_tokens = 3"),
        ((4, 64, 0, 0), "max_num_batched_tokens = 0"),
    ],
)
def test_limits_are_checked(values: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheduler(SchedulerLimits(*values), BlockAllocator(8, 4))


def test_cancel_in_every_state() -> None:
    loop = crowd(3)
    loop.add("waiting", prompt(2, 2), 4)
    assert loop.scheduler.cancel("waiting")  # WAITING
    while loop.scheduler.counters.preemptions == 0:
        loop.launch()
        loop.collect()
    assert loop.scheduler.cancel("new")  # PREEMPTED
    loop.launch()
    loop.launch()
    assert loop.requests["old"].frames_in_flight > 0
    assert loop.scheduler.cancel("old")  # RUNNING, frames in flight
    assert not loop.scheduler.cancel("old")  # FINISHED
    assert not loop.scheduler.cancel("nobody")
    assert loop.launch() is None
    while loop.in_flight:
        assert loop.collect() == []
    loop.check_end()


def test_finish_from_the_host_with_a_reason() -> None:
    loop = Loop(k=1)
    request = loop.add("a", prompt(2), 9)
    loop.launch()
    loop.launch()
    loop.collect()
    assert loop.scheduler.finish("a", "stop")
    assert (request.finish_reason, len(request.output_token_ids)) == ("stop", 1)
    assert loop.collect() == []
    assert len(request.output_token_ids) == 1


def test_results_are_applied_once_and_in_order() -> None:
    loop = Loop()
    loop.add("a", prompt(2), 9)
    scheduler, device = loop.scheduler, loop.device
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None
    assert second is not None
    results = device.run(first), device.run(second)
    with pytest.raises(RuntimeError, match="step 1 cannot be applied: the oldest step in flight is 0"):
        scheduler.update(second, results[1])
    scheduler.update(first, results[0])
    with pytest.raises(RuntimeError, match="step 0 cannot be applied: the oldest step in flight is 1"):
        scheduler.update(first, results[0])
    scheduler.update(second, results[1])
    with pytest.raises(RuntimeError, match="in flight is none"):
        scheduler.update(second, results[1])


@pytest.mark.parametrize(
    ("sampled", "num_sampled", "num_drafts", "finished"),
    [
        ([[1, 2]], [0], [3], [0]),  # a missing count is not a zero
        ([[1, 2, 3, 4, 5]], [5], [3], [0]),  # more than 1 + k
        ([[1, 2, 3]], [3], [1], [0]),  # more than the valid drafts allow
        ([[1]], [1], [4], [0]),  # more drafts than the row carries
        ([[1]], [1], [-1], [0]),
        ([[1]], [2], [3], [0]),  # fewer ids than counted
        ([[1]], [1], [3], [2]),  # ended by length before it
        ([[1]], [1], [3], [3]),  # no such code
        ([[1, 2, 3]], [3], [3], [0]),  # at the limit and not ended
        ([[1, 2, 3, 4]], [4], [3], [2]),  # beyond the limit
    ],
)
def test_a_result_that_contradicts_the_plan_is_an_error(
    sampled: list[list[int]], num_sampled: list[int], num_drafts: list[int], finished: list[int]
) -> None:
    loop = Loop(k=3)
    loop.add("a", prompt(2), max_tokens=4)
    loop.launch()
    loop.collect()
    plan = loop.scheduler.schedule()
    assert plan is not None
    with pytest.raises(RuntimeError, match="device result contradicts the plan"):
        loop.scheduler.update(plan, StepResult(sampled, num_sampled, num_drafts, finished))


def test_a_result_for_a_chunk_inside_the_prefill_has_no_token() -> None:
    loop = Loop(max_num_batched_tokens=2)
    loop.add("a", prompt(4), max_tokens=4)
    plan = loop.scheduler.schedule()
    assert plan is not None
    with pytest.raises(RuntimeError, match="device result contradicts the plan"):
        loop.scheduler.update(plan, StepResult([[5]], [1], [0], [0]))


def test_a_result_needs_a_value_for_each_row() -> None:
    loop = Loop()
    loop.add("a", prompt(4), max_tokens=4)
    plan = loop.scheduler.schedule()
    assert plan is not None
    with pytest.raises(RuntimeError, match=r"columns of \[1, 1, 0, 1\] rows, its plan 1"):
        loop.scheduler.update(plan, StepResult([[5]], [1], [], [0]))


def test_acceptance_counts_only_what_was_verified_and_delivered() -> None:
    """A stop inside the block truncates; placeholders, prefill rows and dropped frames do not enter."""
    oracle = sequential_decode(prompt(5), SamplingParams(max_tokens=20), 64)[0]
    loop = Loop(k=5, script=always("A"))
    request = loop.add("a", prompt(5), 20, stop=[oracle[3]])
    loop.run(depth=2)
    assert len(request.output_token_ids) == 4  # one from the prefill, three of a block of six
    assert request.acceptance.histogram == [0, 0, 1, 0, 0, 0]
    assert request.acceptance.num_draft_tokens == 5
    assert loop.scheduler.acceptance.as_dict() == request.acceptance.as_dict()
    silent = Loop(k=5, script=always("-"))
    silent.add("a", prompt(5), 20)
    silent.run()
    assert silent.scheduler.acceptance.num_drafts == 0


@pytest.mark.parametrize("damage", ["slot", "frames", "order", "blocks"])
def test_the_integrity_check_can_fail(damage: str) -> None:
    loop = Loop()
    first = loop.add("a", prompt(2), 9)
    loop.add("b", prompt(2), 9)
    loop.launch()
    if damage == "slot":
        first.slot = 3
    elif damage == "frames":
        first.frames_in_flight = 0
    elif damage == "order":
        first.arrival_order = 9
    else:
        loop.scheduler.blocks.free("a")
    with pytest.raises(RuntimeError, match="accounting is broken"):
        loop.scheduler.check_integrity()
