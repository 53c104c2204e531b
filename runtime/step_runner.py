"""StepRunner: what an engine needs of whatever turns plans into device work."""

from __future__ import annotations

from typing import Any, Protocol

from runtime.path_counters import PathCounters
from runtime.phase_clock import NoPhases
from runtime.plan import StepPlan, StepResult


class Outcome(Protocol):
    """A step in flight."""

    plan: StepPlan

    def collect(self) -> StepResult:
        """Block the host until the step's results have arrived: the one wait of a steady step."""
        ...


class StepRunner(Protocol):
    """What turns plans into device work. Launching never waits."""

    @property
    def paths(self) -> PathCounters:
        """Which way the steps went; the engine counts collections in it."""
        ...

    def launch(self, plan: StepPlan) -> Outcome: ...

    def trace_phases(self, phases: NoPhases) -> None:
        """Let `phases` hear where staging and launching begin."""
        ...

    def info(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
