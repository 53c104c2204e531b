"""Which cases of the regression matrix a gate runs: every pair of values of any two axes, or nearly everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runtime.gates.case import AXES, Case

Pair = tuple[str, Any, str, Any]
DRAWN_WHEN_FULL = ("prompt", "lengths", "schedule", "steps_in_flight")
"""Axes that the full matrix draws by seed for each combination of all the others."""


def pairwise(seed: int = 0, *, candidates: int = 40) -> list[Case]:
    """Cases that together hold every possible pair of values of any two axes; greedy, the same for the same seed.

    Method: AETG (Cohen et al., 1997): each case is the best of some drawn around a pair that is still missing.
    """
    draw = random.Random(seed)
    missing = {
        pair
        for (left, lefts), (right, rights) in itertools.combinations(AXES.items(), 2)
        for pair in ((left, a, right, b) for a in lefts for b in rights)
        if _possible({pair[0]: pair[1], pair[2]: pair[3]})
    }
    cases: list[Case] = []
    while missing:
        wanted = min(missing, key=repr)
        drawn = [_case_with(wanted, draw, len(cases)) for _ in range(candidates)]
        best = max(drawn, key=lambda case: len(missing.intersection(pairs_of(case))))
        missing.difference_update(pairs_of(best))
        cases.append(best)
    return cases


def pairs_of(case: Case) -> list[Pair]:
    """The pairs of values that a case holds."""
    return [(left, getattr(case, left), right, getattr(case, right)) for left, right in itertools.combinations(AXES, 2)]


def sampled(count: int, seed: int = 1) -> list[Case]:
    """`count` cases drawn from the whole matrix."""
    draw = random.Random(seed)
    return [_completed({}, draw, 1000 + number) for number in range(count)]


def full() -> Iterator[Case]:
    """Every combination of speculator, k, batch, accept, stop, event, mode and policy; the other axes are drawn for each."""
    names = [name for name in AXES if name not in DRAWN_WHEN_FULL]
    for number, values in enumerate(itertools.product(*(AXES[name] for name in names))):
        chosen = dict(zip(names, values, strict=True))
        # Prompt lookup follows no script: the other values of the axis would repeat the same case.
        if _possible(chosen) and (chosen["speculator"] not in ("none", "ngram") or chosen["accept"] == AXES["accept"][0]):
            yield _completed(chosen, random.Random(f"full {number}"), number)


def scheduled(num_random: int = 20) -> Iterator[Case]:
    """Every combination of speculator, k, batch and policy under the eager, the lazy and `num_random` random schedules; the other
    axes are drawn once for each combination. A random schedule brings its own seed, which draws prompts and limits anew too."""
    for variant in _by_variant():
        for case in variant:
            yield from (_under(case, schedule) for schedule in range(2 + num_random))


def covering(num_random: int = 20) -> Iterator[Case]:
    """Some of `scheduled`: each speculator with its k meets each schedule once, in another batch and policy every time. They hold
    every pair of values of these axes, every combination that leaves the schedule out, and every one without speculator and k."""
    for number, variant in enumerate(_by_variant()):
        for schedule in range(2 + num_random):
            yield _under(variant[(number + schedule) % len(variant)], schedule)


def _by_variant() -> list[list[Case]]:
    """The combinations of speculator, k, batch and policy by speculator and k, the other axes drawn."""
    names = ("speculator", "k", "batch", "policy")
    variants: dict[tuple[Any, Any], list[Case]] = {}
    for number, values in enumerate(itertools.product(*(AXES[name] for name in names))):
        chosen = dict(zip(names, values, strict=True))
        if _possible(chosen):
            case = _completed(chosen, random.Random(f"scheduled {number}"), number)
            variants.setdefault((case.speculator, case.k), []).append(case)
    return list(variants.values())


def _under(case: Case, schedule: int) -> Case:
    """0: eager, 1: lazy, from 2 on a random one."""
    if schedule < 2:
        return replace(case, schedule=("eager", "lazy")[schedule])
    return replace(case, schedule="random", seed=case.seed + 1000 * (schedule - 2))


def _case_with(pair: Pair, draw: random.Random, seed: int) -> Case:
    left, a, right, b = pair
    return _completed({left: a, right: b}, draw, seed)


def _completed(chosen: dict[str, Any], draw: random.Random, seed: int) -> Case:
    """A possible case with these values, the rest drawn."""
    while True:
        case = Case(**{name: chosen.get(name, draw.choice(values)) for name, values in AXES.items()}, seed=seed)
        if case.is_possible:
            return case


def _possible(chosen: dict[str, Any]) -> bool:
    if "speculator" in chosen and "k" in chosen:
        return Case(speculator=chosen["speculator"], k=chosen["k"], lengths=chosen.get("lengths", "fixed")).is_possible
    without_drafts = chosen.get("speculator") == "none" or chosen.get("k") == 0
    return not (without_drafts and chosen.get("lengths") == "changing")
