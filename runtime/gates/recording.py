"""RecordingRunner: the runner of an engine under a gate, with a note of every step that went through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graphs.key import Family, GraphKey
from runtime.device import Device
from runtime.device_counters import DeviceCounters
from runtime.path_counters import PathCounters
from runtime.phase_clock import NoPhases
from runtime.plan import StepPlan, StepResult
from runtime.runner import Runner
from runtime.step_outcome import StepOutcome
from runtime.virtual_graph import VirtualGraph
from runtime.virtual_queue import OperationQueue


@dataclass(eq=False)
class RecordedStep:
    """One step.

    launched: graphs that it launched, with counts.
    launch_counters, collect_counters: what the device was asked for meanwhile.
    launched_in, collected_in: calls of Engine.step, counted from 0.
    num_operations: that the launch put into the device's queue.
    num_proposing: of those, the ones of its propose graphs, which are queued behind its outcome.
    behind: steps that were launched and not collected, right after its own collection.
    queued: operations that had not run then. needless: of those behind its outcome, how many there must be at least.
    result: once it was collected.
    """

    plan: StepPlan
    launched: Counter[GraphKey]
    launch_counters: DeviceCounters
    launched_in: int
    num_operations: int
    num_proposing: int
    collect_counters: DeviceCounters = field(default_factory=DeviceCounters)
    collected_in: int = -1
    behind: int = -1
    queued: int = -1
    needless: int = -1
    result: StepResult | None = None


class RecordedOutcome:
    """An outcome whose collection is noted."""

    def __init__(self, outcome: StepOutcome, step: RecordedStep, recorder: RecordingRunner) -> None:
        self.plan = outcome.plan
        self._outcome, self._step, self._recorder = outcome, step, recorder

    def collect(self) -> StepResult:
        step, counters = self._step, self._recorder.device.counters
        before = counters.copy()
        step.result = self._outcome.collect()
        step.collect_counters = counters.since(before)
        self._recorder.note_collection(step)
        return step.result


class RecordingRunner:
    """Stands between an engine and its runner. Waits for nothing itself.

    Attributes:
        steps: in launch order.
        turn: the present call of Engine.step; whoever calls it counts.
    """

    def __init__(self, runner: Runner, device: Device) -> None:
        self.runner, self.device = runner, device
        self._queue: OperationQueue | None = getattr(device, "queue", None)
        self.steps: list[RecordedStep] = []
        self.turn = 0
        self._in_flight: list[RecordedStep] = []

    @property
    def paths(self) -> PathCounters:
        return self.runner.paths

    def launch(self, plan: StepPlan) -> RecordedOutcome:
        launches, counters, enqueued = self.runner.library.launches.copy(), self.device.counters, self._num_enqueued()
        before = counters.copy()
        outcome = self.runner.launch(plan)
        launched = self.runner.library.launches - launches
        proposing = sum(
            count * self._num_operations(key) for key, count in launched.items() if key.family is Family.PROPOSE
        )
        num_operations = self._num_enqueued() - enqueued
        step = RecordedStep(plan, launched, counters.since(before), self.turn, num_operations, proposing)
        self.steps.append(step)
        self._in_flight.append(step)
        return RecordedOutcome(outcome, step, self)

    def trace_phases(self, phases: NoPhases) -> None:
        self.runner.trace_phases(phases)

    def note_collection(self, step: RecordedStep) -> None:
        """`step` has just been collected: what is in flight, and what of it the device has not run."""
        self._in_flight.remove(step)
        step.collected_in, step.behind = self.turn, len(self._in_flight)
        if self._queue is not None:
            step.queued = len(self._queue)
            step.needless = step.num_proposing + sum(later.num_operations for later in self._in_flight)

    def _num_enqueued(self) -> int:
        """0 on a GPU, whose queue nobody sees into."""
        return 0 if self._queue is None else self._queue.num_enqueued

    def _num_operations(self, key: GraphKey) -> int:
        """Of the device's queue, for one launch of the graph of `key`."""
        graph = self.runner.library.graphs[key]
        return graph.executable.num_operations if isinstance(graph.executable, VirtualGraph) else graph.num_nodes

    def info(self) -> dict[str, Any]:
        return self.runner.info()

    def close(self) -> None:
        self.runner.close()
