"""The rings of a step: what each refuses, and that nothing waits but collect()."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from runtime.errors import ConfigError
from runtime.mirror_errors import MirrorError, OutcomeError, StagingBusyError
from runtime.mirror_policy import MirrorPolicy
from runtime.staging import OutcomeRing, StagingRing
from runtime.virtual_device import VirtualDevice
from tests.mirror_steps import POLICIES, SCHEDULES, open_virtual, policy_of


class Rings:
    def __init__(self, device: VirtualDevice, policy: str) -> None:
        self.device = device
        self.compute, self.copy = device.stream("compute"), device.stream("copy")
        resolved = policy_of(policy)
        self.staging = StagingRing(device, "inputs_ring", (2,), depth=3, steps_in_flight=2, policy=resolved)
        self.inputs = device.array("inputs", (2,), np.int32)
        self.outcomes = OutcomeRing(device, "outcomes", (2,), depth=2, steps_in_flight=2, policy=resolved)

    def stage(self, step: int) -> None:
        self.staging.next(step).write([step, -step])
        self.staging.submit(step, self.compute, self.inputs)

    def finish(self, step: int) -> None:
        """The step's only kernel: the outcome is the inputs."""
        self.compute.copy(self.outcomes.array.reshape((2,)), self.inputs)
        self.outcomes.submit(step, self.compute, self.copy)


@pytest.fixture(params=POLICIES)
def rings(request: pytest.FixtureRequest) -> Iterator[Rings]:
    with open_virtual("lazy") as device:
        yield Rings(device, request.param)
        assert device.races == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_every_step_sees_its_own_block_and_its_own_outcome(policy: str, schedule: str, seed: int) -> None:
    with open_virtual(schedule, seed) as device:
        rings = Rings(device, policy)
        before = device.counters.copy()
        collected = []
        for step in range(9):
            rings.stage(step)
            rings.finish(step)
            if step:
                collected.append(rings.outcomes.collect(step - 1).tolist())
        collected.append(rings.outcomes.collect(8).tolist())
        assert collected == [[step, -step] for step in range(9)]
        used = device.counters.since(before)
        assert (used.stream_synchronizes, used.device_synchronizes, used.event_synchronizes) == (0, 0, 9)
        assert used.copies_by_kind["d2h"] == (9 if policy == "discrete" else 0)
        assert device.races == []


# StagingRing


@pytest.mark.parametrize("depth", [1, 2])
def test_a_ring_that_is_not_deeper_than_the_steps_in_flight_is_refused(depth: int) -> None:
    with (
        open_virtual() as device,
        pytest.raises(MirrorError, match=rf"inputs_ring: ring depth = {depth} must exceed steps_in_flight = 2.*depth >= 3"),
    ):
        StagingRing(device, "inputs_ring", (2,), depth=depth, steps_in_flight=2, policy=policy_of("discrete"))


def test_a_block_that_the_device_may_still_read_is_refused_not_waited_for(rings: Rings) -> None:
    for step in range(3):
        rings.stage(step)
    before = rings.device.counters.copy()
    limits = r"depth = 3, steps_in_flight = 2.*collect step 0 first.*wait\(0\)"
    with pytest.raises(StagingBusyError, match=rf"step 3 needs the block of step 0.*{limits}"):
        rings.staging.next(3)
    assert rings.device.counters.since(before).event_synchronizes == 0
    assert not rings.staging.released(0)
    rings.staging.wait(0)
    assert rings.staging.released(0)
    rings.stage(3)


def test_a_submitted_block_is_the_devices(rings: Rings) -> None:
    block = rings.staging.next(0)
    block.write([1, 2])
    block.write(3, 1)
    rings.staging.submit(0, rings.compute, rings.inputs)
    with pytest.raises(StagingBusyError, match=r"inputs_ring: the block of step 0 was submitted.*next\(step\)"):
        block.write([9, 9])
    assert rings.device.download(rings.inputs).tolist() == [1, 3]


def test_an_old_block_handle_does_not_reach_the_step_that_has_its_memory_now(rings: Rings) -> None:
    old = rings.staging.next(0)
    rings.staging.submit(0, rings.compute, rings.inputs)
    for step in (1, 2):
        rings.stage(step)
    rings.device.synchronize()
    rings.staging.next(3)
    with pytest.raises(StagingBusyError, match="the block of step 0"):
        old.write([9, 9])


def test_steps_are_consecutive(rings: Rings) -> None:
    with pytest.raises(MirrorError, match="step = 1, but the next block is step 0's"):
        rings.staging.next(1)
    rings.stage(0)
    with pytest.raises(MirrorError, match="step = 0, but the next block is step 1's"):
        rings.staging.next(0)


def test_submit_needs_next_and_comes_once(rings: Rings) -> None:
    with pytest.raises(MirrorError, match="step 0 is not staged"):
        rings.staging.submit(0, rings.compute, rings.inputs)
    rings.stage(0)
    with pytest.raises(MirrorError, match=r"step 0 was submitted before.*next\(1\)"):
        rings.staging.submit(0, rings.compute, rings.inputs)


def test_a_block_that_was_staged_and_never_submitted_is_named(rings: Rings) -> None:
    rings.staging.next(0)
    for step in (1, 2):
        rings.stage(step)
    with pytest.raises(MirrorError, match=r"step 3 needs the block of step 0, which was staged and never submitted.*submit\(0\)"):
        rings.staging.next(3)
    with pytest.raises(MirrorError, match="step 0 was not submitted, so the device never finishes"):
        rings.staging.wait(0)


def test_released(rings: Rings) -> None:
    with pytest.raises(MirrorError, match="step 0 was not staged yet"):
        rings.staging.released(0)
    for step in range(3):
        rings.stage(step)
    rings.device.synchronize()
    rings.stage(3)
    assert [rings.staging.released(step) for step in range(4)] == [True, True, True, False]


# OutcomeRing


def test_an_outcome_ring_below_the_steps_in_flight_is_refused() -> None:
    with (
        open_virtual() as device,
        pytest.raises(MirrorError, match=r"outcomes: ring depth = 1 is below steps_in_flight = 2.*depth >= 2"),
    ):
        OutcomeRing(device, "outcomes", (2,), depth=1, steps_in_flight=2, policy=policy_of("discrete"))


def test_collecting_before_submit_is_refused(rings: Rings) -> None:
    with pytest.raises(OutcomeError, match=r"outcomes: step 0 was not submitted.*submit\(0\) first"):
        rings.outcomes.collect(0)


def test_collecting_twice_is_refused(rings: Rings) -> None:
    rings.stage(0)
    rings.finish(0)
    rings.outcomes.collect(0)
    with pytest.raises(OutcomeError, match="outcomes: step 0 was collected before; keep the array"):
        rings.outcomes.collect(0)


def test_outcomes_are_collected_in_order(rings: Rings) -> None:
    for step in range(2):
        rings.stage(step)
        rings.finish(step)
    with pytest.raises(OutcomeError, match="step 0 comes before step 1; collect in order"):
        rings.outcomes.collect(1)
    assert rings.outcomes.uncollected == 2


def test_an_outcome_is_not_overwritten_before_it_was_collected(rings: Rings) -> None:
    for step in range(2):
        rings.stage(step)
        rings.finish(step)
    rings.stage(2)
    with pytest.raises(OutcomeError, match=r"step 2 would overwrite the outcome of step 0.*depth = 2.*collect\(0\) first"):
        rings.finish(2)
    assert rings.outcomes.collect(0).tolist() == [0, 0]


def test_submit_is_consecutive(rings: Rings) -> None:
    with pytest.raises(MirrorError, match="step = 1, but step 0 is next"):
        rings.outcomes.submit(1, rings.compute, rings.copy)


def test_a_collected_array_is_the_callers_own(rings: Rings) -> None:
    rings.stage(0)
    rings.finish(0)
    kept = rings.outcomes.collect(0)
    for step in range(1, 5):
        rings.stage(step)
        rings.finish(step)
        rings.outcomes.collect(step)
    assert kept.tolist() == [0, 0]


def test_freed_rings_leave_nothing(rings: Rings) -> None:
    rings.stage(0)
    rings.finish(0)
    rings.device.synchronize()
    rings.staging.free()
    rings.outcomes.free()
    held = rings.device.allocated_bytes()
    assert (held["pinned"], held["mapped"], held["device"]) == (0, 0, 8)


@pytest.mark.parametrize("ring", [StagingRing, OutcomeRing])
def test_no_step_in_flight_is_no_ring(ring: type[StagingRing] | type[OutcomeRing]) -> None:
    device = open_virtual()
    with pytest.raises(MirrorError, match=r"steps_in_flight = 0: .* pass at least 1"):
        ring(device, "r", (2,), np.int32, depth=1, steps_in_flight=0, policy=MirrorPolicy("discrete", "test"))


def test_a_policy_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match="mirror policy = foo: must be one of discrete, integrated"):
        MirrorPolicy("foo", "test")
