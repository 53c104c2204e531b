"""PhaseClock: what an engine says of its phases, and what a clock makes of it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from runtime.phase_clock import NO_PHASES, Phase, PhaseClock
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny


def test_a_phase_ends_where_the_next_begins() -> None:
    clock = PhaseClock(8, clock=count(100, 10).__next__)
    for phase in (Phase.SCHEDULE, Phase.STAGE, Phase.OUTSIDE, Phase.SCHEDULE, Phase.OUTSIDE):
        clock.mark(phase)
    assert [(span.phase.label, span.start, span.end, span.step) for span in clock.spans()] == [
        ("schedule", 100, 110, 0), ("stage", 110, 120, 0), ("outside", 120, 130, 0), ("schedule", 130, 140, 1),
    ]  # fmt: skip


def test_marks_beyond_the_capacity_are_counted_and_not_kept() -> None:
    clock = PhaseClock(2)
    for _ in range(5):
        clock.mark(Phase.LAUNCH)
    assert clock.lost == 3
    assert len(clock.spans()) == 1


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_engine_marks_every_phase_of_a_step(tmp_path: Path, asynchronous: bool) -> None:
    write_tiny_checkpoint(tmp_path / "model", LOOPING)
    with open_tiny(tmp_path / "model", runner__async=asynchronous) as engine:
        clock = PhaseClock(10_000)
        engine.trace_phases(clock)
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=8, ignore_eos=True))
        engine.drain()
        engine.trace_phases(NO_PHASES)
    spans = clock.spans()
    steps = [[span.phase for span in spans if span.step == step] for step in range(spans[-1].step + 1)]
    assert set().union(*steps) == set(Phase)
    for step in steps:
        # In order; the first step of the asynchronous arm has nothing to collect yet, and its last nothing to launch.
        assert step == sorted(step, key=lambda phase: (phase is Phase.OUTSIDE, phase)), step
    assert clock.lost == 0
