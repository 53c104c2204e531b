"""Copies and launches that are bound once and queued again and again: the same work, and the same refusals, as each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphs.cpu_executor import CpuExecutor
from kernels.lang import cuda, kernel
from runtime.device import open_device
from runtime.errors import DeviceError
from runtime.race_detector import Race, UseAfterFree
from runtime.virtual_device import VirtualDevice
from tests.idle_gpu import idle_gpu


@kernel(writes=("x",))
def add_to_all(x, amount):
    """x += amount."""
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        x[i] += amount


@pytest.fixture(params=["virtual", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    opened: Any = VirtualDevice(CpuExecutor()) if request.param == "virtual" else open_device("cuda")
    with opened:
        yield opened


@pytest.fixture
def idle() -> Iterator[Any]:
    """A CUDA device that only keeps its books."""
    with idle_gpu() as module, module.CudaDevice() as opened:
        yield opened


def test_each_call_is_one_more(device: Any) -> None:
    stream, x = device.stream("compute"), device.array("x", (3,), np.int32)
    y = device.pinned("y", (3,), np.int32)
    stream.fill(x, 0)
    add, fetch = stream.prepare_launch(add_to_all, 1, 32, x, 5), stream.prepare_copy(y, x)
    before = device.counters.copy()
    for times in (1, 2, 3):
        add()
        fetch()
        stream.synchronize()
        assert y.read().tolist() == [5 * times] * 3
    used = device.counters.since(before)
    assert (used.launches, used.copies, used.copies_by_kind["d2h"], used.copied_bytes) == (3, 3, 3, 36)


def test_inside_a_capture_they_are_recorded(device: Any) -> None:
    stream, x = device.stream("compute"), device.array("x", (3,), np.int32)
    stream.fill(x, 0)
    add = stream.prepare_launch(add_to_all, 1, 32, x, 5)
    with stream.capture("twice") as captured:
        add()
        add()
    captured.graph.launch(stream)
    assert captured.graph.num_nodes == 2
    assert device.download(x).tolist() == [10] * 3


def test_what_the_call_would_refuse_is_refused_at_once(device: Any) -> None:
    stream, x = device.stream("compute"), device.array("x", (3,), np.int32)
    with pytest.raises(DeviceError, match="does not fit"):
        stream.prepare_copy(device.pinned("y", (4,), np.int32), x)()
    with pytest.raises(DeviceError, match="takes 2 arguments"):
        stream.prepare_launch(add_to_all, 1, 32, x)()


def test_the_race_detector_sees_every_call() -> None:
    with VirtualDevice(CpuExecutor()) as device:
        compute, copy = device.stream("compute"), device.stream("copy")
        x, y = device.array("x", (3,), np.int32), device.pinned("y", (3,), np.int32)
        compute.fill(x, 0)
        done, fetch = device.event("done"), copy.prepare_copy(y, x)
        compute.record(done)
        copy.wait(done)
        fetch()
        with pytest.raises(Race, match=r"not ordered after the read by copy x -> y on stream `copy` \(tests/test_prepared"):
            compute.launch(add_to_all, 1, 32, x, 5)


def test_freed_memory_is_noticed_at_the_next_call(idle: Any) -> None:
    stream, x, y = idle.stream("compute"), idle.array("x", (3,), np.int32), idle.pinned("y", (3,), np.int32)
    fetch, other = stream.prepare_copy(y, x), idle.array("other", (3,), np.int32)
    fetch()
    idle.free(other)
    fetch()
    idle.free(x)
    with pytest.raises(UseAfterFree, match="copy x -> y: `x` was freed"):
        fetch()


def test_a_capture_elsewhere_and_a_closed_device_refuse_them(idle: Any) -> None:
    stream, x, y = idle.stream("compute"), idle.array("x", (3,), np.int32), idle.pinned("y", (3,), np.int32)
    fetch = stream.prepare_copy(y, x)
    with pytest.raises(DeviceError, match="is not allowed inside it"), idle.stream("other").capture("graph"):
        fetch()
    idle.close()
    with pytest.raises(DeviceError, match="the device is closed"):
        fetch()
