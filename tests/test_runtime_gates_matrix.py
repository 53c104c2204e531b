"""What `draftgraph gates --schedules` runs."""

from __future__ import annotations

from collections import Counter

from runtime.gates.case import AXES
from runtime.gates.matrix import scheduled


def test_every_cell_meets_every_schedule() -> None:
    cases = list(scheduled())
    cells = Counter((case.speculator, case.k, case.batch, case.policy) for case in cases)
    # k = 0 goes with no speculator alone, the other four with each of four.
    assert len(cells) == (1 + 4 * 4) * len(AXES["batch"]) * len(AXES["policy"])
    assert set(cells.values()) == {22}
    assert Counter(case.schedule for case in cases) == {"eager": len(cells), "lazy": len(cells), "random": 20 * len(cells)}
    assert len({str(case) for case in cases}) == len(cases)
    assert all(case.is_possible for case in cases)
