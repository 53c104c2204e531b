"""PhaseClock: what the host was doing, and when. The engine says where a phase begins; who profiles keeps the times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """What the host does in a step, in the order in which it does it."""

    OUTSIDE = 0  # between two calls of Engine.step: the caller's own time
    SCHEDULE = 1
    STAGE = 2  # admissions, and the step's inputs into the ring
    LAUNCH = 3
    COLLECT = 4  # the one wait of a step
    UPDATE = 5  # the scheduler learns what the step yielded
    DETOKENISE = 6

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class PhaseSpan:
    """One phase from its beginning to the next one's, nanoseconds of time.perf_counter_ns. step counts calls of Engine.step."""

    phase: Phase
    start: int
    end: int
    step: int


class NoPhases:
    """Nobody profiles: a mark is one call that does nothing."""

    def mark(self, phase: Phase) -> None:
        """`phase` begins now."""


NO_PHASES = NoPhases()


class PhaseClock(NoPhases):
    """Times of marks, in lists that were allocated before the first of them.

    Args:
        capacity: marks that are kept; later ones are counted in `lost` and not kept.
    """

    def __init__(self, capacity: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._times = [0] * capacity
        self._phases = [Phase.OUTSIDE] * capacity
        self._clock = clock
        self._count = 0
        self.lost = 0

    def mark(self, phase: Phase) -> None:
        index = self._count
        if index == len(self._times):
            self.lost += 1
            return
        self._times[index] = self._clock()
        self._phases[index] = phase
        self._count = index + 1

    def spans(self) -> list[PhaseSpan]:
        """Every phase that has ended, in order; the last mark only ends the one before it."""
        spans, step = [], -1
        for index in range(self._count - 1):
            phase = self._phases[index]
            step += phase is Phase.SCHEDULE
            spans.append(PhaseSpan(phase, self._times[index], self._times[index + 1], step))
        return spans
