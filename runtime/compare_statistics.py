"""Statistics of a paired comparison: which difference between two arms is more than equal arms differ by.

Arms run in pairs, in the order AB BA AB BA: what drifts meanwhile hits both alike. One pair yields one log ratio of its
two measurements, which is 0 for equal arms. The floor is measured and not declared: the largest log ratio of a pair of equal arms
(A/A). A difference counts when its bootstrap interval excludes 0 and its median is above the floor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

MIN_PAIRS = 4
RESAMPLES = 2000
CONFIDENCE = 0.95


class Told(str, Enum):
    """Which arm a comparison tells to be the better one."""

    FIRST = "first"
    SECOND = "second"
    NEITHER = "neither"


@dataclass(frozen=True)
class Effect:
    """How much better the first arm is, as a log ratio: 0.1 is 10.5 % better, negative is worse.

    Attributes:
        log_ratio: median over the pairs. low, high: its bootstrap interval.
        floor: the largest |log ratio| that equal arms showed; None when nobody measured them.
        log_ratios: of each pair.
    """

    log_ratio: float
    low: float
    high: float
    floor: float | None
    log_ratios: tuple[float, ...]

    @property
    def told(self) -> Told:
        """NEITHER below the floor, and wherever the interval holds 0. Without a floor the interval alone decides."""
        if self.low <= 0.0 <= self.high or (self.floor is not None and abs(self.log_ratio) <= self.floor):
            return Told.NEITHER
        return Told.FIRST if self.log_ratio > 0 else Told.SECOND

    @property
    def ratio(self) -> float:
        """exp(log_ratio): 1.1 is 10 % better."""
        return math.exp(self.log_ratio)


def abba(num_pairs: int) -> list[tuple[int, int]]:
    """Which arm runs first and which second, pair by pair: (0, 1), (1, 0), (0, 1), ... Even, so that a drift cancels.

    Raises ValueError: below MIN_PAIRS, or odd.
    """
    if num_pairs < MIN_PAIRS or num_pairs % 2:
        raise ValueError(f"pairs = {num_pairs}: must be even and at least {MIN_PAIRS}, or a drift of the machine does not cancel")
    return [(0, 1) if pair % 2 == 0 else (1, 0) for pair in range(num_pairs)]


def log_ratios(first: Sequence[float], second: Sequence[float], *, lower_is_better: bool) -> list[float]:
    """One a pair, positive where the first arm did better.

    Raises ValueError: other lengths, or a measurement that is not positive and finite.
    """
    if len(first) != len(second) or len(first) < MIN_PAIRS:
        raise ValueError(f"{len(first)} and {len(second)} measurements: need as many of each arm, at least {MIN_PAIRS}")
    for value in (*first, *second):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"measurement = {value}: must be positive and finite")
    sign = -1.0 if lower_is_better else 1.0
    return [sign * math.log(a / b) for a, b in zip(first, second, strict=True)]


def spread(aa_log_ratios: Sequence[float]) -> float:
    """The floor: how far apart two equal arms were at most."""
    return max(abs(value) for value in aa_log_ratios)


def effect(ab_log_ratios: Sequence[float], floor: float | None, *, seed: int = 0) -> Effect:
    """The median of the paired log ratios with its percentile bootstrap interval. Same input, same numbers.

    Raises ValueError: fewer than MIN_PAIRS values.
    """
    if len(ab_log_ratios) < MIN_PAIRS:
        raise ValueError(f"{len(ab_log_ratios)} pairs: need at least {MIN_PAIRS}")
    values = np.asarray(ab_log_ratios, np.float64)
    low, high = bootstrap_median(values, seed=seed)
    return Effect(float(np.median(values)), low, high, floor, tuple(float(value) for value in values))


def bootstrap_median(values: npt.NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the median (Efron, 1979), CONFIDENCE wide, RESAMPLES drawn with replacement."""
    draws = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    medians = np.median(values[draws], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return float(low), float(high)
