"""What may start early: not in front of data that it reads before its wait, nor behind a copy, an event or a graph's start."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runtime.early_start import may_start_early


@dataclass(frozen=True)
class Work:
    writes: tuple[str, ...] = ()
    computes: bool = True


KERNEL, COPY = Work(("out",)), Work(("positions",), computes=False)


@pytest.mark.parametrize(
    ("early", "before", "expected"),
    [
        ((), [KERNEL], True),
        ((), [], False),
        ((), [KERNEL, COPY], False),
        ((), [COPY, KERNEL], True),
        (("positions",), [KERNEL, KERNEL], True),
        (("positions",), [Work(("positions", "out"))], False),
        (("positions",), [KERNEL, Work(("positions",))], False),
        (("positions",), [COPY, KERNEL], False),
        (("positions",), [Work(("positions",)), KERNEL], False),
        (("k_cache", "positions"), [Work(("k_cache",)), KERNEL], False),
    ],
)
def test_what_may_start_early(early: tuple[str, ...], before: list[Work], expected: bool) -> None:
    assert may_start_early(frozenset(early), before) is expected
