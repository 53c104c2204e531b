"""The queue of the virtual device: its cost grows with the work, not with its square."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kernels.lang import kernel
from runtime.virtual_device import VirtualDevice
from tests.fuzz_interpreter import PythonExecutor


@kernel(writes=("x",))
def increment(x):
    """x += 1."""
    x[0] += 1


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_twenty_thousand_operations_in_flight(schedule: str) -> None:
    device = VirtualDevice(PythonExecutor(), schedule=schedule)
    streams = [device.stream(f"s{i}") for i in range(4)]
    counters = [device.array(f"x{i}", (1,), np.int32) for i in range(4)]
    event = device.event("event")
    for counter in counters:
        device.upload(counter, [0])
    start = time.perf_counter()
    for i in range(20_000):
        streams[i % 4].launch(increment, 1, 1, counters[i % 4])
        if i % 50 == 0:
            streams[i % 4].record(event)
            streams[(i + 1) % 4].wait(event)
    streams[3].synchronize()
    device.synchronize()
    # A fraction of a second; a queue that looked at every pending operation would take minutes.
    assert time.perf_counter() - start < 20
    assert [device.download(counter)[0] for counter in counters] == [5_000] * 4


def test_done_operations_let_go_of_their_memory() -> None:
    device = VirtualDevice(PythonExecutor())
    stream, event, x = device.stream("s"), device.event("e"), device.array("x", (1,), np.int32)
    stream.fill(x, 1)
    stream.record(event)
    event.synchronize()
    assert event.frontier is not None
    assert [(operation.call, operation.accesses, operation.dependencies) for operation in event.frontier] == [(None, (), [])]
    assert len(device.queue) == 0
