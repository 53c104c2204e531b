"""Scheduler: the ordinary course of a batch, and one example for each hazard.

Loop.run checks every request token by token with the oracle, that every cache position touched belongs to the row, and
that no slot or block is left over, in every test of these files.
"""

from __future__ import annotations

import pytest

from runtime.plan import Admission, StepPlan
from runtime.sampling import SamplingParams
from tests.plan_executor import Loop, always, mixed, sequential_decode
from tests.scheduler_prompts import ALL_K, DEPTHS, prompt


def sampling_rows(plan: StepPlan, request_id: str) -> int:
    return sum(row.samples for row in plan.rows if row.request_id == request_id)


# ---- the ordinary course ---------------------------------------------------------------------------------------


def test_one_request_step_by_step() -> None:
    loop = Loop(k=3, script=always("A"))
    request = loop.add("a", prompt(5), max_tokens=9)
    first = loop.launch()
    assert first is not None
    assert first.admissions == (Admission("a", 0, request.epoch, tuple(prompt(5)), 5, 14, request.params),)
    row = first.rows[0]
    assert (row.num_tokens, row.num_drafts, row.is_prefilling, row.samples, row.start_upper) == (5, 0, True, True, 0)
    assert first.query_len is None
    second = loop.launch()  # before the first was collected: the first decode row already carries drafts
    assert second is not None
    row = second.rows[0]
    assert (row.num_tokens, row.num_drafts, row.is_prefilling, row.samples, row.start_upper) == (4, 3, False, True, 5)
    assert (second.query_len, second.admissions) == (4, ())
    assert [len(update.token_ids) for update in loop.collect() + loop.collect()] == [1, 4]
    loop.run(depth=0)
    assert loop.device.num_steps == 3
    assert request.acceptance.histogram == [0, 0, 0, 2]
    assert request.times.ttft_s == 1.0


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("k", ALL_K)
@pytest.mark.parametrize("num_blocks", [4, 7, 16, 64])
def test_batches_under_every_depth_and_pool(k: int, depth: int, num_blocks: int) -> None:
    loop = Loop(k=k, num_blocks=num_blocks, max_num_batched_tokens=max(9, 1 + k), script=mixed(k))
    for index in range(6):
        loop.add(f"r{index}", prompt(1 + 2 * index, index), 5 + 7 * index, stop=[17] if index % 2 else [])
    loop.run(depth)
    assert (loop.scheduler.counters.stale_rows > 0) <= (depth > 0)


def test_first_come_first_served_without_overtaking() -> None:
    loop = Loop(max_num_seqs=2, max_num_batched_tokens=8)
    for index, length in enumerate([6, 6, 1, 1]):
        loop.add(f"r{index}", prompt(length, index), 3)
    plan = loop.launch()
    assert plan is not None
    # r1 takes what the budget has left; the short ones behind it wait for a slot.
    assert [(row.request_id, row.num_tokens) for row in plan.rows] == [("r1", 2), ("r0", 6)]
    loop.run()
    admitted = [admission.request_id for plan in loop.plans for admission in plan.admissions]
    assert admitted == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize("k", [0, 3])
def test_chunked_prefill_beside_decode_rows(k: int) -> None:
    loop = Loop(k=k, max_num_batched_tokens=8, script=always("R"))
    loop.add("a", prompt(3), 12)
    loop.launch()
    loop.add("b", prompt(21, 1), 4)
    chunks, begins = [], []
    while True:
        plan = loop.launch()
        loop.collect()
        assert plan is not None
        assert plan.query_len is None
        row = plan.rows[-1]
        assert plan.rows[0].request_id == "a"
        assert (row.request_id, row.is_prefilling) == ("b", True)
        chunks.append(row.num_tokens)
        begins.append(row.start_upper)
        if row.samples:
            break
    width = 8 - (1 + k)
    assert sum(chunks) == 21
    assert chunks[:-1] == [width] * (len(chunks) - 1)
    assert begins == [width * index for index in range(len(chunks))]  # exact, never an upper bound
    loop.run()


# ---- hazards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_b13_prompts_with_the_shape_of_decode_rows_prefill(k: int, chunks: int) -> None:
    budget = 9
    loop = Loop(k=k, max_num_batched_tokens=budget)
    length = chunks * budget + 1 + k
    loop.add("a", prompt(length), 6)
    for _ in range(chunks):
        loop.launch()
    plan = loop.launch()
    assert plan is not None
    row = plan.rows[0]
    assert (row.num_tokens, row.is_prefilling, row.num_drafts) == (1 + k, True, 0)
    assert plan.query_len is None
    decode = loop.launch()
    assert decode is not None
    assert decode.query_len == 1 + k
    loop.run()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("k", ALL_K)
def test_b38_tables_reach_what_the_device_can_write_one_round_ahead(k: int, depth: int) -> None:
    """The executor fails on a position beyond the table, for the verify row and for the drafter behind it."""
    block_size = 4
    for length in range(block_size * 3 - 1, block_size * 3 + 2 * k + 2):
        loop = Loop(k=k, num_blocks=16, block_size=block_size, max_num_seqs=1, script=always("A"))
        loop.add("a", prompt(length), 40)
        loop.run(depth)


def test_rows_of_different_lengths_take_their_blocks_in_few_steps() -> None:
    """Each step that changes block tables costs a copy, whichever row it is for."""
    loop = Loop(num_blocks=256, max_model_len=256, script=always("A"))
    for index, length in enumerate([3, 4, 5, 6]):
        loop.add(f"r{index}", prompt(length, index), 100)
    loop.run()
    assert [index for index, plan in enumerate(loop.plans) if plan.block_writes] == [0, 66]


def test_blocks_that_are_not_needed_yet_leave_half_of_the_pool_free() -> None:
    loop = Loop(num_blocks=40, max_model_len=256, script=always("A"))
    held = {}
    for name in "ab":
        loop.add(name, prompt(4), 100)
        loop.launch()
        held[name] = len(loop.scheduler.blocks.table(name))
    assert held == {"a": 18, "b": 2}, "of 64 tokens more, and of the next one"


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("length", [1, 54, 57, 58, 59, 60, 61, 62, 63])
def test_b37_contexts_near_max_model_len(length: int, depth: int) -> None:
    for letter in "AR":
        loop = Loop(k=5, max_model_len=64, script=always(letter))
        loop.add("a", prompt(length), 100)
        loop.add("b", prompt(3), 4)
        loop.run(depth)
        assert loop.requests["a"].finish_reason == "length"
        assert loop.requests["a"].num_tokens == 64


def test_b40_drafts_are_not_trimmed_near_a_limit() -> None:
    loop = Loop(k=3, max_num_seqs=8, script=always("R"))
    for index in range(8):
        loop.add(f"r{index}", prompt(2, index), 3 if index == 4 else 20)
    loop.launch()
    loop.collect()
    plan = loop.launch()  # r4 is two tokens from its limit
    assert plan is not None
    assert loop.requests["r4"].num_tokens == 3
    assert plan.query_len == 4
    assert [row.num_drafts for row in plan.rows] == [3] * 8
    loop.run()


@pytest.mark.parametrize("k", [0, 3])
def test_a_row_that_is_certain_to_be_finished_is_not_scheduled(k: int) -> None:
    loop = Loop(k=k, script=always("R"))
    loop.add("a", prompt(3), max_tokens=3)
    plans = [loop.launch() for _ in range(4)]
    assert [plan is not None for plan in plans] == [True, True, True, False]  # one token a frame at least
    loop.run()
    assert sum(sampling_rows(plan, "a") for plan in loop.plans) == 3


def test_chunks_in_flight_are_no_tokens() -> None:
    loop = Loop(max_num_batched_tokens=2)
    loop.add("a", prompt(8), max_tokens=1)
    plans = [loop.launch() for _ in range(5)]  # four chunks, the last of which samples the only token
    assert [plan is not None for plan in plans] == [True, True, True, True, False]
    loop.run()


def test_b2_a_request_skipped_for_want_of_budget_keeps_its_drafts() -> None:
    loop = Loop(k=3, max_num_batched_tokens=7, script=always("A"))
    for index in range(2):
        loop.add(f"r{index}", prompt(2, index), 9)
    loop.run()
    assert any(len(plan.rows) == 1 for plan in loop.plans)
    # r1 was skipped with drafts on the device and used all of them afterwards.
    assert loop.requests["r1"].acceptance.histogram == [0, 0, 0, 2]


@pytest.mark.parametrize("depth", [1, 2])
def test_b1_a_reused_slot_gets_a_whole_admission_while_old_frames_are_in_flight(depth: int) -> None:
    loop = Loop(k=3, max_num_seqs=1, num_blocks=8, script=mixed(3))
    loop.add("a", prompt(5), 30, stop=[sequential_decode(prompt(5), SamplingParams(), 32)[0][4]])
    loop.add("b", prompt(4, 2), 7)
    loop.run(depth)
    assert [admission.slot for plan in loop.plans for admission in plan.admissions] == [0, 0]
    assert loop.requests["a"].finish_reason == "stop"
    assert loop.scheduler.counters.stale_rows > 0


def test_an_id_may_be_used_again_while_frames_of_its_first_owner_are_in_flight() -> None:
    loop = Loop(k=3, script=always("A"))
    loop.add("a", prompt(3), 20)
    loop.launch()
    loop.launch()
    assert loop.scheduler.cancel("a")
    again = loop.add("a", prompt(6, 4), 8)
    loop.launch()
    assert loop.collect() + loop.collect() == []
    assert (loop.scheduler.counters.stale_rows, again.output_token_ids) == (2, [])
    loop.run(depth=2)
