"""RecordingRunner: the runner of an engine under a gate, with a note of every step that went through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graphs.key import GraphKey
from runtime.device_counters import DeviceCounters
from runtime.path_counters import PathCounters
from runtime.plan import StepPlan, StepResult
from runtime.runner import Runner, StepOutcome


@dataclass
class RecordedStep:
    """One step.

    launched: graphs that it launched, with counts.
    launch_counters, collect_counters: what the device was asked for meanwhile.
    result: once it was collected.
    """

    plan: StepPlan
    launched: Counter[GraphKey]
    launch_counters: DeviceCounters
    collect_counters: DeviceCounters = field(default_factory=DeviceCounters)
    result: StepResult | None = None


class RecordedOutcome:
    """An outcome whose collection is noted."""

    def __init__(self, outcome: StepOutcome, step: RecordedStep, counters: DeviceCounters) -> None:
        self.plan = outcome.plan
        self._outcome, self._step, self._counters = outcome, step, counters

    def collect(self) -> StepResult:
        before = self._counters.copy()
        self._step.result = self._outcome.collect()
        self._step.collect_counters = self._counters.since(before)
        return self._step.result


class RecordingRunner:
    """Stands between an engine and its runner. Waits for nothing itself.

    Attributes:
        steps: in launch order.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.steps: list[RecordedStep] = []

    @property
    def paths(self) -> PathCounters:
        return self.runner.paths

    def launch(self, plan: StepPlan) -> RecordedOutcome:
        launches, counters = self.runner.library.launches.copy(), self.runner.device.counters
        before = counters.copy()
        outcome = self.runner.launch(plan)
        step = RecordedStep(plan, self.runner.library.launches - launches, counters.since(before))
        self.steps.append(step)
        return RecordedOutcome(outcome, step, counters)

    def info(self) -> dict[str, Any]:
        return self.runner.info()

    def close(self) -> None:
        self.runner.close()
