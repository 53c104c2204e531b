"""StepProbe: device times from events around graphs, host times from phases; on a device without a clock it says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphs.key import GraphKey
from runtime.copy_bandwidth import LEAST_BYTES, copy_bandwidth
from runtime.sampling import SamplingParams
from runtime.step_probe import StepProbe, probe_steps
from tests.tiny_engine import open_tiny

DECODE, OTHER, PROPOSE = GraphKey.uniform(2, 1), GraphKey.uniform(1, 1), GraphKey.propose(2)


class ClockedEvent:
    """An event that is reached at the device's time when it is recorded."""

    def __init__(self) -> None:
        self.at = -1.0

    def milliseconds_since(self, earlier: ClockedEvent) -> float:
        return self.at - earlier.at

    def synchronize(self) -> None:
        """Everything has run."""


class ClockedDevice:
    """A device whose time moves when a test or a copy moves it."""

    has_clock = True

    def __init__(self, free: int = 0, copy_ms: Iterator[float] | None = None) -> None:
        self.now, self.free_now, self._copies = 0.0, free, copy_ms
        self.held: set[str] = set()

    def event(self, name: str, *, timing: bool) -> ClockedEvent:
        assert timing
        return ClockedEvent()

    def stream(self, name: str) -> ClockedDevice:
        return self

    def record(self, event: ClockedEvent) -> None:
        event.at = self.now

    def synchronize(self) -> None:
        """Everything has run."""

    def free_bytes(self) -> int:
        return self.free_now

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> str:
        self.held.add(name)
        return name

    def free(self, name: str) -> None:
        self.held.remove(name)

    def fill(self, array: str, value: int) -> None:
        """Nothing to see."""

    def copy(self, target: str, source: str) -> None:
        assert self._copies is not None
        self.now += next(self._copies)


class ClockedEngine:
    """Replays graphs of given lengths, with given pauses in front of them, in milliseconds."""

    def __init__(self) -> None:
        device = ClockedDevice()
        self.runner = SimpleNamespace(device=device, compute=device, library=SimpleNamespace(watch=None))
        self.phases: Any = None

    def trace_phases(self, phases: Any) -> None:
        self.phases = phases

    def replay(self, key: GraphKey, pause: float, length: float) -> None:
        device, watch = self.runner.device, self.runner.library.watch
        device.now += pause
        if watch is not None:
            watch.before(key)
        device.now += length
        if watch is not None:
            watch.after(key)


def test_device_times_are_those_of_the_steady_graph() -> None:
    engine = ClockedEngine()

    def work() -> None:
        engine.replay(GraphKey.mixed(2, 16), 0.0, 9.0)
        engine.replay(PROPOSE, 0.0, 1.0)
        for length in (2.0, 3.0, 4.0):
            engine.replay(DECODE, 0.5, length)
            engine.replay(PROPOSE, 0.25, 1.0)
        engine.replay(OTHER, 7.0, 2.0)

    result = probe_steps(engine, work)
    assert engine.runner.library.watch is None
    assert (result["steady_graph"], result["steady_steps"]) == (str(DECODE), 3)
    assert result["device_step_ms"]["median"] == pytest.approx(3.0 + 0.25 + 1.0)
    # Two gaps lie between steady steps; those to the prefill and to the last step are not among them.
    assert result["replay_gap_ms"]["median"] == result["replay_gap_ms"]["max"] == pytest.approx(0.5)
    assert result["graphs_ms"][str(PROPOSE)] == {"replays": 4, "median": pytest.approx(1.0)}
    assert result["graphs_ms"][str(GraphKey.mixed(2, 16))] == {"replays": 1, "median": pytest.approx(9.0)}


def test_a_run_without_steady_steps_says_so() -> None:
    engine = ClockedEngine()
    result = probe_steps(engine, lambda: engine.replay(GraphKey.mixed(2, 16), 0.0, 9.0))
    assert result["device_absent"] == "no decode or verify step ran"


def test_graphs_beyond_the_capacity_are_not_kept() -> None:
    engine = ClockedEngine()
    probe = StepProbe(engine, 2)
    for _ in range(5):
        engine.replay(DECODE, 0.0, 1.0)
    probe.stop()
    assert probe.result()["steady_steps"] == 2


def test_host_phases_of_a_real_engine() -> None:
    with open_tiny(Path("random:tiny")) as engine:
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        result = probe_steps(engine, lambda: engine.generate([[5, 6, 7], [8, 9]], params))
    host = result["host_step_ms"]
    assert set(host) == {"schedule", "stage", "launch", "update", "detokenise", "collect", "work", "p99_work"}
    assert all(value > 0 for value in host.values())
    assert "no clock of its own" in result["device_absent"]


def test_copy_bandwidth_counts_both_directions_and_gives_its_memory_back() -> None:
    device = ClockedDevice(free=1 << 40, copy_ms=iter([50.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 3.0]))
    assert copy_bandwidth(device) == pytest.approx(2 * 2**30 / 1e-3)
    assert not device.held
    assert copy_bandwidth(ClockedDevice(free=2 * LEAST_BYTES)) is None
