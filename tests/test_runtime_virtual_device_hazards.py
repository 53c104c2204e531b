"""Ordering bugs that runtimes of this kind have had, planted one by one.

Each must be reported under every schedule, and must give wrong data under a lazy or random one when nobody looks; without the bug
there is neither. Run eagerly and without the detector, as on a simulator with synchronous streams, all of them look right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels.lang import kernel
from runtime.race_detector import Hazard
from runtime.virtual_device import VirtualDevice
from tests.fuzz_interpreter import PythonExecutor

Scenario = Callable[[VirtualDevice, bool], object]


@kernel(writes=("total",))
def consume(total, ids):
    """total = 10 total + ids: what was read, and when."""
    for i in range(len(ids)):
        total[i] = 10 * total[i] + ids[i]


@kernel(writes=("ids",))
def combine(ids, source):
    """ids = source + 1, in place of what was there."""
    for i in range(len(ids)):
        ids[i] = source[i] + 1


def pinned_block_overwritten(device: VirtualDevice, bug: bool) -> object:
    """One staging block for two steps in flight; right: a ring of two."""
    stream = device.stream("compute")
    ids, total = device.array("ids", (1,), np.int32), device.array("total", (1,), np.int32)
    ring = device.pinned("ring", (2, 1), np.int32)
    stream.fill(total, 0)
    for step in range(2):
        block = 0 if bug else step
        ring.write(step + 1, block)
        stream.copy(ids, ring[block : block + 1].reshape((1,)))
        stream.launch(consume, 1, 1, total, ids)
    return device.download(total).tolist() == [12]


def host_read_before_its_event(device: VirtualDevice, bug: bool) -> object:
    """An event recorded before the copy that it should cover."""
    compute, copy = device.stream("compute"), device.stream("copy")
    accepted, ready = device.event("accepted"), device.event("ready")
    sampled, outcome = device.array("sampled", (1,), np.int32), device.pinned("outcome", (1,), np.int32)
    outcome.write(0)
    compute.fill(sampled, 7)
    compute.record(accepted)
    copy.wait(accepted)
    if bug:
        copy.record(ready)
    copy.copy(outcome, sampled)
    if not bug:
        copy.record(ready)
    ready.synchronize()
    return outcome.read().tolist() == [7]


def missing_fork(device: VirtualDevice, bug: bool) -> object:
    """The copy stream does not wait for the step whose outcome it takes."""
    compute, copy, accepted = device.stream("compute"), device.stream("copy"), device.event("accepted")
    sampled, outcome = device.array("sampled", (1,), np.int32), device.pinned("outcome", (1,), np.int32)
    device.upload(sampled, [0])
    compute.fill(sampled, 7)
    compute.record(accepted)
    if not bug:
        copy.wait(accepted)
    copy.copy(outcome, sampled)
    copy.synchronize()
    return outcome.read().tolist() == [7]


def next_step_overwrites_the_outcome(device: VirtualDevice, bug: bool) -> object:
    """The next step writes the outcome that the copy stream has not taken yet; right: the double buffer."""
    compute, copy, accepted = device.stream("compute"), device.stream("copy"), device.event("accepted")
    sampled = device.array("sampled", (2, 1), np.int32)
    outcome = device.pinned("outcome", (2, 1), np.int32)
    for step in range(2):
        row = slice(0, 1) if bug else slice(step, step + 1)
        compute.fill(sampled[row], step + 1)
        compute.record(accepted)
        copy.wait(accepted)
        copy.copy(outcome[step : step + 1], sampled[row])
    compute.synchronize()
    copy.synchronize()
    return outcome.read().tolist() == [[1], [2]]


def upload_overtakes_the_replay(device: VirtualDevice, bug: bool) -> object:
    """The event that allows the next upload is recorded before the replay that still reads, not after it."""
    compute, upload = device.stream("compute"), device.stream("upload")
    uploaded, consumed = device.event("uploaded"), device.event("consumed")
    ids, total = device.array("ids", (1,), np.int32), device.array("total", (1,), np.int32)
    staged = device.pinned("staged", (2, 1), np.int32)
    staged.write([[1], [2]])
    compute.fill(total, 0)
    with compute.capture("verify") as capture:
        compute.launch(consume, 1, 1, total, ids)
    for step in range(2):
        upload.copy(ids, staged[step : step + 1].reshape((1,)))
        upload.record(uploaded)
        compute.wait(uploaded)
        if bug:
            compute.record(consumed)
        capture.graph.launch(compute)
        if not bug:
            compute.record(consumed)
        upload.wait(consumed)
    upload.synchronize()
    return device.download(total).tolist() == [12]


def scratch_freed_while_queued(device: VirtualDevice, bug: bool) -> object:
    """A buffer grows by free and allocate while the step that uses it is queued."""
    stream, total = device.stream("compute"), device.array("total", (1,), np.int32)
    scratch = device.array("scratch", (1,), np.int32)
    stream.fill(total, 0)
    stream.fill(scratch, 4)
    if not bug:
        stream.launch(consume, 1, 1, total, scratch)
        stream.synchronize()
    memory = scratch.values
    if bug:
        stream.launch(consume, 1, 1, total, scratch)
    device.free(scratch)
    memory[:] = 99  # the next owner of the memory
    return device.download(total).tolist() == [4] and memory[0] == 99


def mapped_input_rewritten(device: VirtualDevice, bug: bool) -> object:
    """Integrated memory: the host stages the next step into what the combine of this one still reads; right: two blocks."""
    stream = device.stream("compute")
    source = device.mapped("source", (2, 1), np.int32)
    ids, total = device.array("ids", (1,), np.int32), device.array("total", (1,), np.int32)
    stream.fill(total, 0)
    for step in range(2):
        block = 0 if bug else step
        source.write(step, block)
        stream.launch(combine, 1, 1, ids, source[block : block + 1].reshape((1,)))
        stream.launch(consume, 1, 1, total, ids)
    return device.download(total).tolist() == [12]


def event_without_the_wait_before_it(device: VirtualDevice, bug: bool) -> object:
    """t -> u -> s: the event that s waits for is recorded on u before u waits for t."""
    t, u, s = device.stream("t"), device.stream("u"), device.stream("s")
    first, second = device.event("first"), device.event("second")
    x, y = device.array("x", (1,), np.int32), device.array("y", (1,), np.int32)
    device.upload(x, [0])
    t.fill(x, 5)
    t.record(first)
    if bug:
        u.record(second)
    u.wait(first)
    if not bug:
        u.record(second)
    s.wait(second)
    s.copy(y, x)
    s.synchronize()
    return device.download(y).tolist() == [5]


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        pinned_block_overwritten,
        host_read_before_its_event,
        missing_fork,
        next_step_overwrites_the_outcome,
        upload_overtakes_the_replay,
        scratch_freed_while_queued,
        mapped_input_rewritten,
        event_without_the_wait_before_it,
    )
}


def make(schedule: str, seed: int = 0, **options) -> VirtualDevice:
    return VirtualDevice(PythonExecutor(), schedule=schedule, seed=seed, **options)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bug_is_reported_under_every_schedule(name: str) -> None:
    for schedule, seed in (("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(20))):
        with pytest.raises(Hazard):
            SCENARIOS[name](make(schedule, seed), True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bug_gives_wrong_data_when_nobody_looks(name: str) -> None:
    schedules = [("lazy", 0), *(("random", seed) for seed in range(20))]
    right = [SCENARIOS[name](make(schedule, seed, detect=False), True) for schedule, seed in schedules]
    assert not all(right)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bug_hides_where_streams_are_synchronous(name: str) -> None:
    assert SCENARIOS[name](make("eager", detect=False), True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_the_bug_all_is_well(name: str) -> None:
    for schedule, seed in (("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(20))):
        device = make(schedule, seed, poison=True)
        assert SCENARIOS[name](device, False)
        assert device.races == []
