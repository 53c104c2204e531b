"""Work beside a stream: behind what was queued before the fork, before what is queued behind the join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphs.trace import Trace
from runtime.device import open_device
from runtime.errors import DeviceError
from runtime.race_detector import Race
from tests.python_device import make
from tests.test_runtime_virtual_device_capture import SCHEDULES, accumulate


def arrays(device: Any) -> tuple[Any, Any, Any]:
    made = tuple(device.array(name, (2,), np.int32) for name in ("x", "y", "z"))
    for array in made:
        device.upload(array, np.zeros(2, np.int32))
    return made


def program(stream: Any, x: Any, y: Any, z: Any, *, joined: bool = True) -> None:
    """z = x + 1 * y, where x is made before the fork, y beside, and a second y behind the join."""
    stream.fill(x, 3)
    beside = stream.fork()
    beside.fill(y, 5)
    beside.launch(accumulate, 1, 1, y, x, 2)
    stream.launch(accumulate, 1, 1, z, x, 1)
    if joined:
        stream.join(beside)
    stream.launch(accumulate, 1, 1, z, y, 1)


def in_line(device: Any, stream: Any, issue: Callable[[], None]) -> None:
    issue()


def captured(device: Any, stream: Any, issue: Callable[[], None]) -> None:
    with stream.capture("forked") as capture:
        issue()
    capture.graph.launch(stream)
    capture.graph.launch(stream)


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("run", [in_line, captured])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_order_of_a_fork(schedule: str, seed: int, run: Callable[..., None], forks: bool) -> None:
    device = make(schedule=schedule, seed=seed)
    stream, (x, y, z) = device.stream("compute"), arrays(device)
    if forks:
        stream.let_fork()
        stream.let_fork()  # once is enough
    assert (stream.fork() is not stream) == forks
    run(device, stream, lambda: program(stream, x, y, z))
    assert device.download(y).tolist() == [11] * 2
    assert device.download(z).tolist() == [14 if run is in_line else 28] * 2


def test_without_the_join_it_is_a_race_or_no_graph() -> None:
    device = make(schedule="lazy")
    stream, (x, y, z) = device.stream("compute"), arrays(device)
    stream.let_fork()
    with pytest.raises(Race):
        program(stream, x, y, z, joined=False)
    with pytest.raises(DeviceError, match="unjoined fork"), stream.capture("forked"):
        stream.fork().fill(y, 1)


def test_what_runs_beside_must_not_touch_what_the_stream_writes() -> None:
    device = make(schedule="lazy")
    stream, (x, y, _) = device.stream("compute"), arrays(device)
    stream.let_fork()
    beside = stream.fork()
    beside.launch(accumulate, 1, 1, y, x, 1)
    with pytest.raises(Race):
        stream.fill(y, 1)


def test_a_trace_has_the_nodes_where_they_were_recorded() -> None:
    device = make()
    x, y, z = arrays(device)
    trace = Trace.of(lambda launch: program(launch, x, y, z))
    assert [node.name for node in trace.nodes] == ["fill", "fill", "accumulate", "accumulate", "accumulate"]


@pytest.mark.gpu
@pytest.mark.parametrize("run", [in_line, captured])
def test_on_a_gpu(run: Callable[..., None]) -> None:
    with open_device("cuda", poison=True) as device:  # type: ignore[attr-defined]
        stream, (x, y, z) = device.stream("compute"), arrays(device)
        stream.let_fork()
        run(device, stream, lambda: program(stream, x, y, z))
        stream.synchronize()
        assert device.download(y).tolist() == [11] * 2
        assert device.download(z).tolist() == [14 if run is in_line else 28] * 2
