"""Scheduler: requests that outgrow the pool, lose their blocks and come back."""

from __future__ import annotations

import logging

import pytest

from runtime.request import RequestState
from tests.plan_executor import Loop, always, mixed
from tests.scheduler_prompts import ALL_K, DEPTHS, crowd, prompt


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b39_a_preempted_request_loses_and_repeats_nothing(k: int, depth: int) -> None:
    loop = crowd(k)
    while loop.scheduler.counters.preemptions == 0:
        while loop.in_flight > depth:
            loop.collect()
        loop.launch()
    new = loop.requests["new"]
    assert new.state is RequestState.PREEMPTED
    assert (new.slot, new.num_scheduled, new.frames_in_flight) == (None, 0, 0)
    collected = len(new.output_token_ids)
    # Its frames in flight come back and are dropped, each once; a drained preemption has none to drop.
    stale = sum(row.request_id == "new" for plan in list(loop.plans)[-loop.in_flight :] for row in plan.rows)
    assert (stale > 0) == (depth > 0)
    while loop.in_flight:
        loop.collect()
    assert loop.scheduler.counters.stale_rows == stale
    assert len(new.output_token_ids) == collected
    loop.run(depth)
    assert new.num_preemptions >= 1
    resumed = [a for plan in loop.plans for a in plan.admissions if a.request_id == "new"][1]
    assert resumed.prefill_tokens == (*prompt(3, 1), *new.output_token_ids[:collected])
    assert (resumed.prompt_len, resumed.max_total_len) == (3, 15)


@pytest.mark.parametrize("k", [0, 3])
def test_b39_preempted_twice_with_frames_in_flight(k: int) -> None:
    loop = Loop(k=k, num_blocks=13, block_size=2, max_model_len=26, script=mixed(5))
    for index in range(4):
        loop.add(f"r{index}", prompt(2 + index, index), 20 - 3 * index)
    loop.run(depth=2)
    assert max(request.num_preemptions for request in loop.requests.values()) >= 2


def test_the_latest_arrived_is_the_victim_and_resumes_before_those_who_wait() -> None:
    loop = Loop(k=0, num_blocks=9, block_size=2, max_num_seqs=3, max_model_len=18, script=always("A"))
    for index in range(5):
        loop.add(f"r{index}", prompt(3, index), 12)
    loop.run()
    assert loop.requests["r0"].num_preemptions == 0
    assert loop.scheduler.counters.preemptions > 0
    firsts = [admission.request_id for plan in loop.plans for admission in plan.admissions]
    assert sorted(set(firsts), key=firsts.index) == [f"r{index}" for index in range(5)]
    for plan in loop.plans:  # nobody behind a preempted request is admitted before it
        ids = [admission.request_id for admission in plan.admissions]
        assert ids == sorted(ids)


def test_the_latest_request_waits_for_a_block_instead_of_preempting_itself() -> None:
    loop = Loop(k=0, num_blocks=6, block_size=2, max_model_len=12)
    loop.add("old", prompt(3), 3)
    loop.add("new", prompt(5, 1), 6)
    for _ in range(3):
        loop.launch()
        loop.collect()
    assert loop.scheduler.counters.blocked_rows > 0 or loop.requests["old"].is_finished
    loop.run(depth=0)
    assert loop.scheduler.counters.preemptions == 0
    assert loop.requests["new"].num_preemptions == 0


def test_nobody_is_admitted_while_a_running_request_waits_for_a_block() -> None:
    loop = Loop(k=3, num_blocks=9, block_size=2, max_num_seqs=4, max_model_len=18, script=always("R"))
    loop.add("old", prompt(3), 12)
    loop.add("new", prompt(3, 1), 12)
    loop.add("tiny", [5], 1)
    blocked = 0
    while loop.scheduler.has_unfinished:
        before = (loop.scheduler.counters.blocked_rows, loop.scheduler.counters.preemptions)
        plan = loop.launch()
        if before != (loop.scheduler.counters.blocked_rows, loop.scheduler.counters.preemptions):
            blocked += 1
            assert plan is None or not plan.admissions
        if loop.in_flight:
            loop.collect()
    assert blocked
    loop.check_end()


@pytest.mark.parametrize("k", ALL_K)
def test_a_request_larger_than_the_pool_ends_with_length_at_its_last_position(
    k: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="runtime.scheduler"):
        loop = Loop(k=k, num_blocks=5, block_size=4, max_model_len=64)
    assert "requests end at 20 tokens" in caplog.text
    request = loop.add("a", prompt(6), 50)
    loop.run()
    # The same length for every k: the room that drafts need takes nothing from the text.
    assert (request.finish_reason, request.num_tokens) == ("length", 20)
    assert loop.scheduler.counters.capacity_limited == 1
    loop.add("b", prompt(6), 14)  # ends at the same position because it asked for no more
    loop.run()
    assert loop.scheduler.counters.capacity_limited == 1
