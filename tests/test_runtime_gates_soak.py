"""A long life of one engine: random arrivals, cancels, preemptions, stops. `make slow` runs the long one."""

from __future__ import annotations

import pytest

from graphs.cpu_executor import CpuExecutor
from runtime.gates.soak import Soak, SoakReport
from tests import toy_runners

EXECUTOR = CpuExecutor()
MOST_BYTES = 40_000


def check(report: SoakReport) -> None:
    assert report.mismatches == ()
    assert report.races == 0
    assert report.held == ""
    # Caches of the interpreter come and go. In the long soak this is less than three bytes a step.
    assert report.grown_bytes < MOST_BYTES
    assert report.grown_objects < report.steps / 10
    assert report.requests > report.steps / 8
    assert min(report.cancelled, report.preemptions, report.stale_rows) > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_thousand_steps(seed: int) -> None:
    check(Soak(seed, EXECUTOR).run(1000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_thousand_steps(seed: int) -> None:
    check(Soak(seed, EXECUTOR).run(20_000))


def test_a_soak_sees_a_leak_and_a_wrong_token() -> None:
    class Leaking(toy_runners.StaleHostReadRunner):
        """Keeps every plan, and accepts drafts that were not fed."""

        def launch(self, plan):  # type: ignore[no-untyped-def]
            kept.append(list(range(20)))
            return super().launch(plan)

    kept: list[list[int]] = []
    report = Soak(0, EXECUTOR, Leaking).run(400)
    assert report.grown_bytes > MOST_BYTES
    assert report.mismatches
