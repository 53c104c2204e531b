"""Each guarantee of mirrors and rings, taken away: the race detector, or the text of an error, or the data must show it.

A guarantee whose absence nothing notices is one that nothing tests.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from runtime import landing
from runtime.errors import DeviceError
from runtime.landing import LandingRing, PendingRead
from runtime.mirror_errors import StagingBusyError, StaleReadError
from runtime.mirror_memory import MappedMemory
from runtime.mirror_table import MirrorTable
from runtime.mirror_tag import Tag
from runtime.race_detector import Hazard, Race, StaleStaging
from runtime.staging import OutcomeRing, StagingRing
from runtime.truth import Truth
from runtime.virtual_stream import VirtualEvent, VirtualStream
from tests.mirror_steps import POLICIES, SCHEDULES, Steps, expected, open_virtual, rows_of_outcomes

STREAM_SCHEDULES = [schedule for schedule in SCHEDULES if schedule[0] != "random" or schedule[1] < 3]
every_schedule = pytest.mark.parametrize(("schedule", "seed"), STREAM_SCHEDULES)
every_policy = pytest.mark.parametrize("policy", POLICIES)


def hazards(policy: str, schedule: str, seed: int, **options: Any) -> list[Hazard]:
    """The races of 8 steps; wrong data is not looked at."""
    with open_virtual(schedule, seed, on_race="record") as device:
        # A mutant that lets the host run ahead may also be stopped by a ring; what counts here is what was reported until then.
        with suppress(StagingBusyError):
            list(Steps(device, policy, **options).run(8))
        return device.races


def outcomes(policy: str, schedule: str) -> list[list[tuple[int, int]]]:
    """What the host would believe without a detector."""
    with open_virtual(schedule, detect=False) as device:
        return rows_of_outcomes(list(Steps(device, policy).run(8)))


@every_policy
@every_schedule
def test_a_ring_that_hands_out_one_block_is_seen(monkeypatch: pytest.MonkeyPatch, policy: str, schedule: str, seed: int) -> None:
    make = StagingRing.__init__

    def one_block(ring: StagingRing, *args: Any, **kwargs: Any) -> None:
        make(ring, *args, **kwargs)
        ring._blocks = [ring._blocks[0]] * ring.depth

    monkeypatch.setattr(StagingRing, "__init__", one_block)
    with pytest.raises(StagingBusyError), open_virtual("lazy") as device:  # the ring notices by itself ...
        list(Steps(device, policy).run(8))
    monkeypatch.setattr(StagingRing, "_refuse_busy", lambda ring, step, block: None)
    assert any(isinstance(race, StaleStaging) and race.buffer == "inputs_ring" for race in hazards(policy, schedule, seed))
    assert outcomes(policy, "lazy") != expected(8)


@every_policy
@every_schedule
def test_more_steps_in_flight_than_the_ring_has_blocks_are_seen(
    monkeypatch: pytest.MonkeyPatch, policy: str, schedule: str, seed: int
) -> None:
    monkeypatch.setattr(StagingRing, "_refuse_busy", lambda ring, step, block: None)
    with open_virtual(schedule, seed, on_race="record") as device:
        steps = Steps(device, policy)
        for step in range(4):
            steps.stage(step)
        assert any(isinstance(race, StaleStaging) for race in device.races)


@every_policy
@every_schedule
def test_a_collect_that_does_not_wait_is_seen(monkeypatch: pytest.MonkeyPatch, policy: str, schedule: str, seed: int) -> None:
    class Deaf:
        name = "deaf"

        def synchronize(self) -> None:
            """The mutant: nobody waits."""

    make = PendingRead.__init__

    def deaf(read: PendingRead, name: str, version: int, event: VirtualEvent, source: Any) -> None:
        make(read, name, version, Deaf(), source)  # type: ignore[arg-type]

    monkeypatch.setattr(PendingRead, "__init__", deaf)
    assert any(isinstance(race, Race) and race.later.stream is None for race in hazards(policy, schedule, seed))


@every_schedule
def test_an_event_recorded_before_its_copy_is_seen(monkeypatch: pytest.MonkeyPatch, schedule: str, seed: int) -> None:
    def early(ring: LandingRing, stream: VirtualStream, source: Any, version: int) -> PendingRead:
        at = ring._count % ring.depth
        stream.record(ring._events[at])
        stream.copy(ring._blocks[at], source)
        ring._count += 1
        return PendingRead(ring.name, version, ring._events[at], ring._blocks[at])

    monkeypatch.setattr(LandingRing, "receive", early)
    assert any(race.buffer == "outcomes_landing" for race in hazards("discrete", schedule, seed) if isinstance(race, Race))


@every_schedule
def test_a_copy_stream_that_does_not_wait_for_compute_is_seen(monkeypatch: pytest.MonkeyPatch, schedule: str, seed: int) -> None:
    wait = VirtualStream.wait

    def forgetful(stream: VirtualStream, event: VirtualEvent) -> None:
        if stream.name != "copy":
            wait(stream, event)

    monkeypatch.setattr(VirtualStream, "wait", forgetful)
    assert any(race.buffer == "outcomes_blocks" for race in hazards("discrete", schedule, seed) if isinstance(race, Race))


@every_policy
@every_schedule
def test_an_outcome_block_that_does_not_rotate_is_seen(
    monkeypatch: pytest.MonkeyPatch, policy: str, schedule: str, seed: int
) -> None:
    make = OutcomeRing.__init__

    def one_block(ring: OutcomeRing, *args: Any, **kwargs: Any) -> None:
        make(ring, *args, **kwargs)
        ring._blocks = [ring._blocks[0]] * ring.depth

    monkeypatch.setattr(OutcomeRing, "__init__", one_block)
    assert any(race.buffer == "outcomes_blocks" for race in hazards(policy, schedule, seed) if isinstance(race, Race))


@every_schedule
def test_a_landing_block_that_does_not_rotate_is_seen(monkeypatch: pytest.MonkeyPatch, schedule: str, seed: int) -> None:
    blocks_of = landing.blocks_of
    monkeypatch.setattr(landing, "blocks_of", lambda memory: [blocks_of(memory)[0]] * memory.shape[0])
    found = hazards("discrete", schedule, seed)
    assert any(race.buffer == "outcomes_landing" for race in found if isinstance(race, Race))


def test_a_pageable_destination_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_virtual() as device:
        steps = Steps(device, "discrete")
        assert steps.outcomes._landings is not None
        steps.outcomes._landings._blocks = [np.zeros((4, 2), np.int32)] * 2  # type: ignore[list-item]
        with pytest.raises(DeviceError, match=r"ndarray.*device.pinned\(\)"):
            list(steps.run(2))


@every_schedule
def test_a_write_to_shared_memory_that_does_not_ask_its_consumer_is_seen(
    monkeypatch: pytest.MonkeyPatch, schedule: str, seed: int
) -> None:
    monkeypatch.setattr(MappedMemory, "consumed", lambda memory, stream: None)
    with open_virtual(schedule, seed, on_race="record") as device:
        steps = Steps(device, "integrated")
        limits = steps.table.create("limits", (4,), Truth.HOST_EXACT)
        limits.upload(steps.compute)
        with steps.table.eager("read the limits", reads=["limits"], writes=["total"]):
            steps.compute.copy(steps.table["total"].device_array, limits.device_array)
        limits.write_host(7)
        assert any(isinstance(race, StaleStaging) and race.buffer == "limits" for race in device.races)


@every_policy
def test_without_the_check_before_a_launch_a_stale_read_is_silent_and_wrong(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Tables written by the host and never staged: the tag is the only thing that notices."""

    def run() -> list[list[tuple[int, int]]]:
        with open_virtual("eager") as device:
            steps = Steps(device, policy)
            monkeypatch.setattr(steps.table["block_tables"], "take_diffs", lambda capacity: np.zeros((0, 3), np.int32))
            return rows_of_outcomes(list(steps.run(4)))

    with pytest.raises(StaleReadError, match="stale read of block_tables"):
        run()
    monkeypatch.setattr(Tag, "check_device_read", lambda *args, **kwargs: None)
    monkeypatch.setattr(Tag, "check_device_write", lambda *args, **kwargs: None)
    assert run() != expected(4)


@every_policy
def test_a_tag_that_is_not_moved_by_a_launch_lets_old_values_through(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    with open_virtual("eager") as device:
        steps = Steps(device, policy)
        list(steps.run(1))
        first = steps.table["total"].download(steps.compute).take()
        monkeypatch.setattr(MirrorTable, "_move", lambda *args: None)
        steps.stage(1)
        steps.launch(steps.verify)
        if policy == "discrete":  # in shared memory the host would see the newer values, unordered
            assert steps.table["total"].read_host().tolist() == first.tolist()
        monkeypatch.undo()
        steps.table["total"].tag.device_wrote("verify")
        with pytest.raises(StaleReadError, match="stale read of total"):
            steps.table["total"].read_host()


def test_the_unmutated_engine_has_no_hazard() -> None:
    """The control: what the mutants above are compared with."""
    for policy in POLICIES:
        for schedule, seed in SCHEDULES:
            assert hazards(policy, schedule, seed) == []
        assert outcomes(policy, "lazy") == expected(8)
