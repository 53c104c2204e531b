"""What `draftgraph gates --schedules` runs."""

from __future__ import annotations

import itertools
from collections import Counter

from runtime.gates.case import AXES
from runtime.gates.matrix import covering, scheduled


def test_every_cell_meets_every_schedule() -> None:
    cases = list(scheduled())
    cells = Counter((case.speculator, case.k, case.batch, case.policy) for case in cases)
    # k = 0 goes with no speculator alone, the other four with each of four.
    assert len(cells) == (1 + 4 * 4) * len(AXES["batch"]) * len(AXES["policy"])
    assert set(cells.values()) == {22}
    assert Counter(case.schedule for case in cases) == {"eager": len(cells), "lazy": len(cells), "random": 20 * len(cells)}
    assert len({str(case) for case in cases}) == len(cases)
    assert all(case.is_possible for case in cases)


def test_the_few_that_cover_are_some_of_all_and_leave_no_pair_out() -> None:
    every = {str(case): case for case in scheduled()}
    number = {text: index % 22 for index, text in enumerate(every)}  # of the schedule, eager first
    few = [str(case) for case in covering()]
    assert len(few) == len(set(few)) == 22 * len({(case.speculator, case.k) for case in every.values()})

    def coordinates(text: str) -> tuple[object, ...]:
        case = every[text]
        return (case.speculator, case.k), case.batch, case.policy, number[text]

    for axes in (*itertools.combinations(range(4), 2), (0, 1, 2), (1, 2, 3)):
        values = [{tuple(coordinates(text)[axis] for axis in axes) for text in texts} for texts in (few, every)]
        assert values[0] == values[1], axes
