"""What a race report says, where it is raised, and what the log costs. Completeness: test_runtime_virtual_device_fuzz.py."""

from __future__ import annotations

import gc
from inspect import currentframe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.lang import kernel
from runtime.race_detector import Race, StaleStaging, UseAfterFree
from tests.python_device import make


@kernel(writes=("y",))
def add(y, x):
    """y += x."""
    for i in range(len(y)):
        y[i] += x[i]


@kernel(writes=("y",))
def toggle(y, x):
    """y ^= x: any number of times without overflow."""
    for i in range(len(y)):
        y[i] ^= x[i]


def line() -> int:
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


SCHEDULES = ("eager", "lazy", "random")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_missing_wait_is_raised_at_the_later_line_with_both_sites(schedule: str) -> None:
    device = make(schedule=schedule)
    compute, copy = device.stream("compute"), device.stream("copy")
    sampled, pinned = device.array("sampled", (4,), np.int32), device.pinned("outcome", (2,), np.int32)
    compute.fill(sampled[2:], 1)
    first = line() - 1
    with pytest.raises(Race) as caught:
        copy.copy(pinned, sampled[1:3])
    second = line() - 1
    race = caught.value
    assert type(race) is Race
    assert (race.buffer, race.start, race.stop) == ("sampled", 8, 12)
    assert (race.earlier.label, race.earlier.stream, race.earlier_writes) == ("fill sampled", "compute", True)
    assert (race.later.label, race.later.stream, race.later_writes) == ("copy sampled -> outcome", "copy", False)
    assert race.earlier.site == (__file__, first)
    assert race.later.site == (__file__, second)
    assert str(race) == (
        "Race on `sampled` bytes [8, 12): the read by copy sampled -> outcome on stream `copy` "
        f"(tests/test_runtime_race_detector.py:{second}) is not ordered after the write by fill sampled on stream `compute` "
        f"(tests/test_runtime_race_detector.py:{first}). The later stream must wait for an event recorded after the earlier one."
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_host_read_before_the_event(schedule: str) -> None:
    device = make(schedule=schedule)
    stream, done = device.stream("copy"), device.event("done")
    x, p = device.array("x", (2,), np.int32), device.pinned("p", (2,), np.int32)
    stream.record(done)  # before the copy: this event says nothing about it
    stream.fill(x, 1)
    stream.copy(p, x)
    done.synchronize()
    with pytest.raises(Race, match=r"the read by the host .*the write by copy x -> p .*The host must first wait for an event"):
        p.read()
    stream.record(done)
    done.synchronize()
    assert p.read().tolist() == [1, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pinned_block_overwritten_under_a_queued_upload(schedule: str) -> None:
    device = make(schedule=schedule)
    stream, done = device.stream("compute"), device.event("done")
    x, p = device.array("x", (4,), np.int32), device.pinned("ring", (2, 4), np.int32)
    p.write(1)
    stream.copy(x, p[0:1].reshape((4,)))
    stream.record(done)
    p.write(2, 1)  # the next block of the ring is free
    with pytest.raises(StaleStaging, match=r"on `ring` bytes \[4, 8\).*Write to the next block of a ring"):
        p.write(3, (0, 1))
    assert p[0:1].read().tolist() == [[1, 1, 1, 1]]
    done.synchronize()
    p.write(3, 0)


def test_a_mapped_block_guards_order_in_both_directions() -> None:
    device = make()
    stream, done = device.stream("compute"), device.event("done")
    ids, out = device.mapped("ids", (2,), np.int32), device.mapped("out", (2,), np.int32)
    ids.write(4)
    stream.fill(out, 0)
    stream.launch(add, 1, 1, out, ids)
    stream.record(done)
    with pytest.raises(StaleStaging, match="`ids`"):
        ids.write(5)
    with pytest.raises(Race, match="`out`"):
        out.read()
    assert ids.read().tolist() == [4, 4]
    done.synchronize()
    assert out.read().tolist() == [4, 4]
    ids.write(5)


def test_a_write_over_what_a_replay_still_reads() -> None:
    """A WAR between replays: the host side of the next step runs ahead of the graph of this one."""
    device = make()
    compute, upload, uploaded, consumed = (*map(device.stream, ("compute", "upload")), *map(device.event, ("uploaded", "consumed")))
    ids, sums, p = device.array("ids", (2,), np.int32), device.array("sums", (2,), np.int32), device.pinned("p", (4, 2), np.int32)
    device.upload(sums, [0, 0])
    p.write([[1, 1], [2, 2], [3, 3], [4, 4]])
    with compute.capture("verify") as capture:
        compute.launch(add, 1, 1, sums, ids)

    def step(i: int, *, wait: bool) -> None:
        if wait:
            upload.wait(consumed)
        upload.copy(ids, p[i : i + 1].reshape((2,)))
        upload.record(uploaded)
        compute.wait(uploaded)
        capture.graph.launch(compute)
        compute.record(consumed)

    step(0, wait=False)
    step(1, wait=True)
    with pytest.raises(Race, match=r"the write by copy p -> ids on stream `upload`.*the read by graph verify on stream `compute`"):
        step(2, wait=False)
    step(3, wait=True)
    assert device.download(sums).tolist() == [7, 7]


def test_reads_do_not_race_and_neighbouring_bytes_do_not() -> None:
    device = make()
    a, b, done = device.stream("a"), device.stream("b"), device.event("done")
    x, y = device.array("x", (4,), np.int32), device.array("y", (4,), np.int32)
    a.fill(x, 1)
    a.record(done)
    b.wait(done)
    a.copy(y[:2], x[:2])
    b.copy(y[2:], x[:2])
    device.synchronize()
    assert device.races == []


def test_recording_goes_on_after_a_race() -> None:
    device = make(on_race="record")
    a, b, x = device.stream("a"), device.stream("b"), device.array("x", (1,), np.int32)
    a.fill(x, 1)
    b.fill(x, 2)
    device.free(x)
    assert [type(race) for race in device.races] == [Race, UseAfterFree, UseAfterFree]
    device.synchronize()


def test_detection_can_be_switched_off() -> None:
    device = make(detect=False)
    a, b, x = device.stream("a"), device.stream("b"), device.array("x", (1,), np.int32)
    a.fill(x, 1)
    b.fill(x, 2)
    device.synchronize()
    assert device.races == []


def test_a_long_run_keeps_a_bounded_log() -> None:
    """20,000 steps of two streams, a pinned ring and a graph, one step ahead of the host."""
    device = make()
    compute, copy, forked = device.stream("compute"), device.stream("copy"), device.event("forked")
    done = [device.event(f"done {i}") for i in range(2)]
    state = device.array("state", (8, 4), np.int32)
    rows = [state[i : i + 1].reshape((4,)) for i in range(8)]
    ring_in, ring_out = device.pinned("in", (4, 4), np.int32), device.pinned("out", (4, 4), np.int32)
    with compute.capture("step") as capture:
        for i in range(7):
            compute.launch(toggle, 1, 1, rows[i + 1], rows[i])
    sizes = []
    for step in range(20_000):
        slot = step % 4
        ring_in.write(step, slot)
        compute.copy(rows[step % 8], ring_in[slot : slot + 1].reshape((4,)))
        if step % 100 == 0:
            capture.graph.launch(compute)
        compute.record(forked)
        copy.wait(forked)
        copy.copy(ring_out[slot : slot + 1].reshape((4,)), rows[step % 8])
        copy.record(done[step % 2])
        if step:
            done[(step - 1) % 2].synchronize()
            ring_out.read((step - 1) % 4)
        compute.wait(done[step % 2])
        if step % 2_000 == 1_999:
            assert device.detector is not None
            sizes.append((device.detector.logged, len(gc.get_objects()), len(device.queue)))
    logged, objects, queued = zip(*sizes, strict=True)
    assert max(logged) <= 24
    assert max(queued) <= 4
    assert max(objects[1:]) <= objects[0] + 100


def test_a_run_that_never_waits_is_bounded_by_what_it_touches() -> None:
    device = make(schedule="eager")
    stream, x = device.stream("compute"), device.array("x", (64,), np.int32)
    for i in range(3_000):
        stream.fill(x[i % 64 : i % 64 + 1], i)
    assert device.detector is not None
    assert device.detector.logged == 64


def test_sites_are_lines_of_the_program_not_of_its_machinery() -> None:
    """A recorder of graphs/ is named by who called it; the node's label already says which launch it is."""
    root = Path(__file__).resolve().parents[1]
    recorder: dict[str, Any] = {}
    exec(compile("def record(stream, x):\n    stream.fill(x, 1)\n", str(root / "graphs" / "decode.py"), "exec"), recorder)
    device = make()
    x = device.array("x", (1,), np.int32)
    recorder["record"](device.stream("a"), x)
    first = line() - 1
    with pytest.raises(Race) as caught:
        recorder["record"](device.stream("b"), x)
    assert caught.value.earlier.site == (__file__, first)
