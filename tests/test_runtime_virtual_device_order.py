"""Order, failures and counters of the virtual device, one rule a test."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.lang import kernel
from runtime.errors import DeviceError
from tests.python_device import make


@kernel(writes=("out",))
def fail(out):
    """Fails like a kernel that reads outside its arrays."""
    raise IndexError("index 9 is out of bounds")


# Order


def test_lazy_runs_nothing_before_the_host_waits_and_then_only_what_is_needed() -> None:
    device = make()
    a, b, done = device.stream("a"), device.stream("b"), device.event("done")
    x, y = device.array("x", (1,), np.int32), device.array("y", (1,), np.int32)
    x.values[:] = y.values[:] = 0
    a.fill(x, 1)
    a.record(done)
    a.fill(x, 2)
    b.fill(y, 3)
    assert (x.values[0], y.values[0]) == (0, 0)
    done.synchronize()
    assert (x.values[0], y.values[0]) == (1, 0)
    b.synchronize()
    assert (x.values[0], y.values[0]) == (1, 3)
    a.synchronize()
    assert x.values[0] == 2


def test_eager_runs_at_once() -> None:
    device = make(schedule="eager")
    x = device.array("x", (1,), np.int32)
    device.stream("a").fill(x, 1)
    assert x.values[0] == 1


def test_random_is_reproducible_and_differs_by_seed() -> None:
    def order(seed: int) -> list[int]:
        device = make(schedule="random", seed=seed, on_race="record")
        x = device.array("x", (1,), np.int32)
        seen = []
        streams = [device.stream(f"s{i}") for i in range(3)]
        for i in range(9):
            streams[i % 3].fill(x, i)
            seen.append(int(x.values[0]))
        device.synchronize()
        return [*seen, int(x.values[0])]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_waits_order_streams_through_a_third_without_work(schedule: str) -> None:
    for seed in range(20):
        device = make(schedule=schedule, seed=seed)
        a, b, c = device.stream("a"), device.stream("b"), device.stream("c")
        first, second = device.event("first"), device.event("second")
        x, y = device.array("x", (1,), np.int32), device.array("y", (1,), np.int32)
        a.fill(x, 1)
        a.record(first)
        b.wait(first)
        b.record(second)
        c.wait(second)
        c.copy(y, x)
        c.synchronize()
        assert y.values[0] == 1


def test_query_tells_and_orders() -> None:
    device = make()
    stream, done = device.stream("copy"), device.event("done")
    x, p = device.array("x", (1,), np.int32), device.pinned("p", (1,), np.int32)
    stream.fill(x, 4)
    stream.copy(p, x)
    stream.record(done)
    assert not done.query()
    assert not stream.query()
    stream.synchronize()
    assert done.query()
    assert stream.query()
    assert p.read().tolist() == [4]


def test_an_event_can_be_recorded_again_and_waiters_keep_what_they_waited_for() -> None:
    device = make()
    a, b, event = device.stream("a"), device.stream("b"), device.event("event")
    x = device.array("x", (2,), np.int32)
    a.fill(x[:1], 1)
    a.record(event)
    b.wait(event)
    a.fill(x[1:], 2)
    a.record(event)
    b.fill(x[:1], 3)
    event.synchronize()
    assert x.values.tolist() == [1, 2]
    b.synchronize()
    assert x.values.tolist() == [3, 2]


def test_events_that_can_never_fire_are_errors() -> None:
    device = make()
    stream, event = device.stream("compute"), device.event("never")
    for call in (lambda: stream.wait(event), event.synchronize, event.query):
        with pytest.raises(DeviceError, match=r"`never`,? (which )?was never recorded"):
            call()
    with pytest.raises(DeviceError, match="no event of this device"):
        stream.wait(make().event("other"))


def test_a_failing_operation_names_itself_and_stops_the_device() -> None:
    device = make()
    stream, x = device.stream("compute"), device.array("x", (1,), np.int32)
    stream.launch(fail, 1, 1, x)
    with pytest.raises(DeviceError, match=r"launch fail on stream `compute` .*test_runtime_virtual_device_order.py.* index 9"):
        stream.synchronize()
    with pytest.raises(DeviceError, match="stopped at an earlier error: launch fail"):
        stream.fill(x, 1)
    device.close()


@pytest.mark.parametrize(("option", "value"), [("schedule", "fast"), ("on_race", "ignore")])
def test_unknown_options_are_refused(option: str, value: str) -> None:
    with pytest.raises(DeviceError, match=f"{option} = '{value}'"):
        make(**{option: value})


# Counters


def test_counters() -> None:
    device = make()
    compute, copy, done = device.stream("compute"), device.stream("copy"), device.event("done")
    x, y = device.array("x", (4,), np.int32), device.array("y", (4,), np.int32)
    p, q = device.pinned("p", (4,), np.int32), device.pinned("q", (4,), np.int32)
    p.write(1)
    compute.copy(x, p)
    compute.copy(y, x)
    before = device.counters.copy()
    compute.fill(x, 1)
    compute.record(done)
    copy.wait(done)
    copy.copy(q[:2], x[:2])
    copy.copy(p, q)
    copy.record(done)
    done.query()
    done.synchronize()
    copy.synchronize()
    device.synchronize()
    step = device.counters.since(before)
    assert (step.launches, step.copies, step.copied_bytes) == (1, 2, 24)
    assert step.copies_by_kind == {"d2h": 1, "h2h": 1}
    assert device.counters.copies_by_kind == {"h2d": 1, "d2d": 1, "d2h": 1, "h2h": 1}
    assert (step.event_queries, step.event_synchronizes, step.stream_synchronizes, step.device_synchronizes) == (1, 1, 1, 1)
    assert step.synchronizes_by_stream == {"copy": 1}
    assert step.synchronizes_by_stream["compute"] == 0
    device.download(q)
    assert (device.counters.transfers, device.counters.device_synchronizes) == (1, 1)


def test_the_state_can_be_printed() -> None:
    device = make()
    x = device.array("x", (2, 2), np.int32)
    device.stream("compute").fill(x, 1)
    held = "device 16 B, constant 0 B, pinned 0 B, mapped 0 B"
    assert str(device) == f"VirtualDevice(python, lazy, 1 operations queued, {held}, 0 races)"
    assert repr(x[1:]) == "VirtualArray(x, (1, 2), int32, bytes [8, 16))"


def test_a_device_that_cannot_map_says_so() -> None:
    with pytest.raises(DeviceError, match=r"`ids`: this device cannot map host memory; use mirror.policy = discrete"):
        make(can_map=False).mapped("ids", (1,), np.int32)
