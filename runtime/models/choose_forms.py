"""Which form of each product, by what whole layers take: one product after the other in few layers, then the close ones together.

Few layers tell what is clearly slower, and little more: what a form costs depends on the launches around it, and good forms differ
by no more than short measurements do. So those that are close are measured once more, in all combinations, in many layers, beside
a second copy of the first of them: what two equal ones differ by is noise.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Places: TypeAlias = dict[str, int]
"""Of each product the place of its form among those that are known."""

CLOSE = 0.03
"""Of the time of few layers, up to which a form may be the fastest all the same: a form was 0.01 behind there and 0.02 ahead in a
whole step (docs/records/2026-11-30.md)."""

FAR = 0.1
"""The same between neighbours that have not been chosen yet, from which a form is not measured again."""

MOST_SETS = 6
"""Combinations of close forms that are measured at most, those that promise most: each costs a start as much as six tokens."""


class Measure(Protocol):
    """Measures sets of forms side by side."""

    def __call__(self, sets: Sequence[Places], *, whole: bool) -> list[list[float]]:
        """Time of layers whose products have these forms, by set and by turn; turns of one number were side by side. whole: of
        many layers."""
        ...


def fastest_places(forms: Mapping[str, Sequence[int]], first: Places, measure: Measure) -> Places:
    """The fastest form of each product; of those that differ by less than equal ones do, the first.

    Args:
        forms: places that each product is tried in, ascending.
        first: what the others are in while the first product is measured.
        measure: the clock.
    """
    places, behind = dict(first), dict[str, dict[int, float]]()
    for name in (*forms, *forms):  # once more between neighbours that have been chosen
        tried = [place for place in forms[name] if behind.get(name, {}).get(place, 0.0) <= FAR]
        times = [statistics.median(turns) for turns in measure([places | {name: place} for place in tried], whole=False)]
        behind[name] = {place: time / min(times) - 1.0 for place, time in zip(tried, times, strict=True)}
        places[name] = min(tried, key=behind[name].__getitem__)
    sets = close_sets(behind)
    if len(sets) == 1:
        return sets[0]
    return sets[first_of_fastest(*measure([sets[0], *sets], whole=True))]


def close_sets(behind: Mapping[str, Mapping[int, float]]) -> list[Places]:
    """Combinations of close forms, MOST_SETS at most. `behind`: by product and form, what it is behind its fastest by, as a share.

    The first is always the same while the same forms are close: that of the first forms.
    """
    close = {name: [place for place, share in shares.items() if share <= CLOSE] for name, shares in behind.items()}
    usual, *others = [dict(zip(close, places, strict=True)) for places in itertools.product(*close.values())]

    def promise(places: Places) -> float:
        return sum(behind[name][place] for name, place in places.items())

    kept = sorted(sorted(others, key=promise)[: MOST_SETS - 1], key=lambda places: list(places.values()))
    return [usual, *kept]


def first_of_fastest(twin: Sequence[float], *sets: Sequence[float]) -> int:
    """Place of the first set than which none is faster by more than noise: by what `twin` and the first set, equals, differ,
    and by twice what a turn is usually off by at least. All by turn."""
    ratios = [[time / once for time, once in zip(times, sets[0], strict=True)] for times in (twin, *sets)]
    again, *medians = (statistics.median(turns) for turns in ratios)
    off = [abs(ratio - statistics.median(turns)) for turns in (ratios[0], *ratios[2:]) for ratio in turns]
    floor = max(abs(again - 1.0), 2.0 * statistics.median(off))
    return next(place for place, ratio in enumerate(medians) if ratio * (1.0 - floor) <= min(medians))
