"""Scheduler: a stateful test against a toy device and sequential decoding, and a soak."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.request import Request
from runtime.sampling import SamplingParams
from tests.plan_executor import Loop, mixed
from tests.scheduler_prompts import ALL_K, prompt


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
