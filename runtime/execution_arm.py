"""Which arm of the engine runs, and why: one step ahead of the device, or a wait after each step. Resolved once, and printed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from runtime.config import RunnerConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecutionArm:
    """Both arms run the same code and the same graphs; they differ in when an outcome is waited for.

    steps_in_flight: steps launched and not collected, the newest included; 1 in the synchronous arm.
    """

    steps_in_flight: int
    reason: str

    @property
    def asynchronous(self) -> bool:
        return self.steps_in_flight > 1

    @property
    def steps_ahead(self) -> int:
        """Steps that stay in flight while the next is launched."""
        return self.steps_in_flight - 1

    def __str__(self) -> str:
        ahead = f"asynchronous, {self.steps_in_flight} steps in flight"
        return f"{ahead if self.asynchronous else 'synchronous, a wait after each step'} ({self.reason})"


def resolve_arm(config: RunnerConfig) -> ExecutionArm:
    """The arm of a configuration; says so in the log when it is the synchronous one.

    `runner.async: false` is the only option that forces it: speculation, prompt lookup, stop strings, preemption, eager mode and
    both mirror policies work one step ahead. steps_in_flight = 1 is refused by the configuration, so that there is one switch.
    """
    if config.async_:
        return ExecutionArm(config.steps_in_flight, "runner.async = true")
    arm = ExecutionArm(1, "forced by runner.async = false")
    logger.info("runner: %s", arm)
    return arm
