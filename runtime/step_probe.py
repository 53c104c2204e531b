"""StepProbe: what each step of an engine costs, on the device by events around its graphs, on the host phase by phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from graphs.key import Family, GraphKey
from runtime.phase_clock import NO_PHASES, Phase, PhaseClock

WORK = (Phase.SCHEDULE, Phase.STAGE, Phase.LAUNCH, Phase.UPDATE, Phase.DETOKENISE)
"""What the host does for a step. COLLECT is the wait for the device, OUTSIDE the caller's own time."""

NO_DEVICE_CLOCK = "this device models a GPU on the host and has no clock of its own"


@dataclass(frozen=True)
class _Replay:
    """A graph between two timed events of the compute stream."""

    key: GraphKey
    begin: Any
    end: Any


class StepProbe:
    """Watches an engine from when it is made until `stop`; read `result` once every step has been collected.

    Events are recorded outside the graphs, straight before and behind each: the upload of a step's inputs is not between them, and
    a gap is all that lies between the last graph of a step and the first of the next. Steady are the steps of the decode or verify
    graph that was replayed most often.

    Args:
        engine: an idle engine.
        capacity: graphs that are kept.
    """

    def __init__(self, engine: Any, capacity: int) -> None:
        self._engine = engine
        self._capacity = capacity
        self._clock = PhaseClock(capacity * len(Phase))
        self._replays: list[_Replay] = []
        self._begin: Any = None
        self._has_clock = bool(engine.runner.device.has_clock)
        if self._has_clock:
            engine.runner.library.watch = self
        engine.trace_phases(self._clock)

    def before(self, key: GraphKey) -> None:
        """A graph is about to be launched."""
        self._begin = self._event("begin")

    def after(self, key: GraphKey) -> None:
        """It was launched."""
        if len(self._replays) < self._capacity:
            self._replays.append(_Replay(key, self._begin, self._event("end")))

    def _event(self, name: str) -> Any:
        runner = self._engine.runner
        event = runner.device.event(f"probe_{name}_{len(self._replays)}", timing=True)
        runner.compute.record(event)
        return event

    def stop(self) -> None:
        """Waits for the device: the drafts behind the last step are collected by nobody."""
        self._engine.trace_phases(NO_PHASES)
        if self._has_clock:
            self._engine.runner.library.watch = None
            self._engine.runner.device.synchronize()

    def result(self) -> dict[str, Any]:
        """Milliseconds; `device_absent` says why there are no device times."""
        result: dict[str, Any] = {"host_step_ms": self._host()}
        return result | (self._device() if self._has_clock else {"device_absent": NO_DEVICE_CLOCK})

    def _host(self) -> dict[str, float]:
        """Median of each phase over the steps that were launched and collected, and of their sum, the wait left out."""
        spans = self._clock.spans()
        count = max((span.step for span in spans), default=-1) + 1
        spent = np.zeros((len(Phase), count))
        for span in spans:
            if span.step >= 0:
                spent[span.phase, span.step] += (span.end - span.start) / 1e6
        whole = spent[:, (spent[Phase.COLLECT] > 0) & (spent[Phase.LAUNCH] > 0)]
        if not whole.shape[1]:
            return {}
        result = {phase.label: float(np.median(whole[phase])) for phase in (*WORK, Phase.COLLECT)}
        work = whole[list(WORK)].sum(axis=0)
        return result | {"work": float(np.median(work)), "p99_work": float(np.percentile(work, 99))}

    def _device(self) -> dict[str, Any]:
        steps: list[list[_Replay]] = []
        by_graph: defaultdict[str, list[float]] = defaultdict(list)
        for replay in self._replays:
            by_graph[str(replay.key)].append(replay.end.milliseconds_since(replay.begin))
            # What is launched behind a step is a part of it, and so is what is launched before the next one.
            if replay.key.family in (Family.MIXED, Family.DECODE, Family.VERIFY) or not steps:
                steps.append([])
            steps[-1].append(replay)
        counts = Counter(step[0].key for step in steps if step[0].key.family in (Family.DECODE, Family.VERIFY))
        if not counts:
            return {"device_absent": "no decode or verify step ran"}
        steady, _ = counts.most_common(1)[0]
        times = [step[-1].end.milliseconds_since(step[0].begin) for step in steps if step[0].key == steady]
        gaps = [
            late[0].begin.milliseconds_since(early[-1].end)
            for early, late in pairwise(steps)
            if early[0].key == late[0].key == steady
        ]
        graphs = {name: {"replays": len(values), "median": float(np.median(values))} for name, values in by_graph.items()}
        result: dict[str, Any] = {
            "steady_graph": str(steady),
            "steady_steps": len(times),
            "device_step_ms": _spread(times),
            "graphs_ms": graphs,
        }
        return result | ({"replay_gap_ms": _spread(gaps)} if gaps else {})


def probe_steps(engine: Any, work: Callable[[], object], capacity: int = 1 << 14) -> dict[str, Any]:
    """What the steps of `work()` cost; the engine is idle before and after it."""
    probe = StepProbe(engine, capacity)
    try:
        work()
    finally:
        probe.stop()
    return probe.result()


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, median, high, last, most = np.percentile(values, [10, 50, 90, 99, 100])
    return {"median": float(median), "p10": float(low), "p90": float(high), "p99": float(last), "max": float(most)}
