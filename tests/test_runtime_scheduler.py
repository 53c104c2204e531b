"""Scheduler: one example for each hazard, and a stateful test against a toy device and sequential decoding.

Loop.run checks every request token by token with the oracle, that every cache position touched belongs to the row, and
that no slot or block is left over, in every test below.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.errors import CapacityError, ConfigError
from runtime.kv_cache import BlockAllocator
from runtime.plan import Admission, StepPlan, StepResult
from runtime.request import Request, RequestState
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.scheduler_limits import SchedulerLimits
from tests.plan_executor import Loop, always, mixed, sequential_decode

ALL_K = [0, 1, 3, 5, 7]
DEPTHS = [0, 1, 2]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 5 + 3 * index) % 31 + 1 for index in range(length)]


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


# ---- preemption ------------------------------------------------------------------------------------------------


def crowd(k: int, num_blocks: int = 12) -> Loop:
    """Two requests that outgrow the pool together: the first needs the blocks of the second after some steps."""
    loop = Loop(k=k, num_blocks=num_blocks, block_size=2, max_model_len=24, script=always("R"))
    loop.add("old", prompt(3), 18)
    loop.add("new", prompt(3, 1), 12)
    return loop


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


# ---- refusals, cancel, misuse ----------------------------------------------------------------------------------


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


# ---- everything at once ----------------------------------------------------------------------------------------


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, cancels, launches and late collections in any order, in pools tight enough to preempt often."""

    @initialize(
        k=st.sampled_from(ALL_K),
        depth=st.integers(1, 3),
        block_size=st.sampled_from([1, 2, 4, 5]),
        pool=st.integers(10, 60),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 24),
        max_model_len=st.integers(12, 40),
        seed=st.integers(0, 50),
    )
    def start(
        self,
        k: int,
        depth: int,
        block_size: int,
        pool: int,
        max_num_seqs: int,
        budget: int,
        max_model_len: int,
        seed: int,
    ) -> None:
        self.depth = depth
        self.loop = Loop(
            k=k,
            num_blocks=-(-pool // block_size),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=max(budget, 1 + k),
            script=mixed(seed),
        )

    @rule(length=st.integers(1, 14), max_tokens=st.integers(1, 30), stop=st.sampled_from([(), (17,), (3, 9, 27)]))
    def arrive(self, length: int, max_tokens: int, stop: tuple[int, ...]) -> None:
        index = len(self.loop.requests)
        if length < self.loop.scheduler.max_model_len:
            self.loop.add(f"r{index}", prompt(length, index), max_tokens, stop)

    @rule(steps=st.integers(1, 5))
    def advance(self, steps: int) -> None:
        """The engine's rhythm: launch the next, then collect down to the depth."""
        for _ in range(steps):
            launched = self.loop.launch() is not None
            while self.loop.in_flight > (self.depth if launched else 0):
                self.loop.collect()

    @precondition(lambda self: self.loop.in_flight > 0)
    @rule()
    def collect_early(self) -> None:
        self.loop.collect()

    @precondition(lambda self: self.loop.scheduler.has_unfinished)
    @rule(choice=st.integers(0, 100))
    def cancel(self, choice: int) -> None:
        unfinished = [request for request in self.loop.requests.values() if not request.is_finished]
        self.loop.scheduler.cancel(unfinished[choice % len(unfinished)].request_id)

    @invariant()
    def accounting_holds(self) -> None:
        if hasattr(self, "loop"):
            self.loop.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run(self.depth)


SchedulerMachine.TestCase.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_soak_with_many_preemptions() -> None:
    """A long run in a pool for about one and a half requests: bounded state, hundreds of preemptions, exact tokens."""
    loop = Loop(k=3, num_blocks=20, block_size=2, max_num_seqs=4, max_model_len=30, max_num_batched_tokens=12)
    for index in range(150):
        loop.add(f"r{index}", prompt(1 + index % 9, index), 4 + index % 19, stop=[11] if index % 3 == 0 else [])
    loop.run(depth=1)
    assert loop.scheduler.counters.preemptions > 50
    assert loop.scheduler.counters.stale_rows > 50
    assert loop.scheduler.num_steps_in_flight == 0
    assert (loop.scheduler.num_running, loop.scheduler.num_waiting) == (0, 0)


def test_requests_are_not_shared_between_schedulers() -> None:
    request = Request("a", prompt(2), SamplingParams(max_tokens=2))
    Loop().scheduler.add(request)
    with pytest.raises(RuntimeError, match="added before"):
        Loop().scheduler.add(request)
