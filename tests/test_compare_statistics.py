"""Statistics of paired comparisons, on simulated timings whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.compare_statistics import Effect, Told, abba, effect, log_ratios, spread

Noise = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]


def normal(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    return rng.normal(0, 1, n)


def heavy(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    return rng.standard_t(3, n)


def skewed(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """As latencies are: never much below the usual, now and then far above."""
    return rng.exponential(1, n)


def drifting(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """A machine that warms up, three times as far as its noise is wide."""
    return rng.normal(0, 1, n) + np.linspace(0, 3, n)


NOISES = [normal, heavy, skewed, drifting]


def session(rng: np.random.Generator, noise: Noise, sd: float, speedup: float, num_pairs: int) -> tuple[list[float], list[float]]:
    """Times of two arms in the order of abba; the second takes `speedup` times as long as the first."""
    errors = noise(rng, 2 * num_pairs) * sd
    times: tuple[list[float], list[float]] = ([], [])
    for pair, order in enumerate(abba(num_pairs)):
        for place, arm in enumerate(order):
            times[arm].append((speedup if arm else 1.0) * math.exp(errors[2 * pair + place]))
    return times


def compared(rng: np.random.Generator, noise: Noise, sd: float, speedup: float, num_pairs: int = 6) -> Effect:
    """A whole comparison: A/A for the floor, then A/B."""
    floor = spread(log_ratios(*session(rng, noise, sd, 1.0, num_pairs), lower_is_better=True))
    return effect(log_ratios(*session(rng, noise, sd, speedup, num_pairs), lower_is_better=True), floor)


def share(told: list[Told], which: Told) -> float:
    return sum(value is which for value in told) / len(told)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("num_pairs", [4, 6, 12])
def test_equal_arms_are_told_apart_in_at_most_one_of_twenty_sessions(noise: Noise, num_pairs: int) -> None:
    rng = np.random.default_rng(1)
    told = [compared(rng, noise, 0.02, 1.0, num_pairs).told for _ in range(400)]
    assert 1.0 - share(told, Told.NEITHER) <= 0.05


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("num_pairs", "least"), [(4, 0.8), (6, 0.9), (12, 0.9)])  # four are the fewest allowed
def test_twice_the_floor_is_seen_in_nine_of_ten_sessions(noise: Noise, num_pairs: int, least: float) -> None:
    rng = np.random.default_rng(2)
    told = []
    for _ in range(400):
        floor = spread(log_ratios(*session(rng, noise, 0.02, 1.0, num_pairs), lower_is_better=True))
        ratios = log_ratios(*session(rng, noise, 0.02, math.exp(2 * floor), num_pairs), lower_is_better=True)
        told.append(effect(ratios, floor).told)
    assert share(told, Told.FIRST) >= least
    assert share(told, Told.SECOND) <= (0.005 if num_pairs == 4 else 0.0)


@pytest.mark.parametrize("noise", NOISES)
def test_one_percent_stays_under_a_floor_of_three_and_ten_percent_does_not(noise: Noise) -> None:
    rng = np.random.default_rng(3)
    small = [compared(rng, noise, 0.02, 1.01).told for _ in range(200)]
    assert share(small, Told.NEITHER) >= 0.95
    # The same noise; ten times the difference.
    large = [compared(rng, noise, 0.01, 1.10).told for _ in range(200)]
    assert share(large, Told.FIRST) >= 0.95
    worse = [compared(rng, noise, 0.01, 1 / 1.10).told for _ in range(200)]
    assert share(worse, Told.SECOND) >= 0.95


@given(
    times=st.lists(st.floats(0.5, 2.0), min_size=4, max_size=20),
    scale=st.floats(0.01, 100.0),
    floor=st.none() | st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_the_arms_are_treated_alike(times: list[float], scale: float, floor: float | None) -> None:
    first, second = times, times[::-1]
    there = effect(log_ratios(first, second, lower_is_better=True), floor)
    back = effect(log_ratios(second, first, lower_is_better=True), floor)
    assert there.log_ratio == pytest.approx(-back.log_ratio)
    rates = effect(log_ratios(first, second, lower_is_better=False), floor)
    assert rates.log_ratio == pytest.approx(-there.log_ratio)
    # The unit of the measurement does not matter.
    scaled = effect(log_ratios([scale * x for x in first], [scale * x for x in second], lower_is_better=True), floor)
    assert scaled.log_ratio == pytest.approx(there.log_ratio, abs=1e-12)
    assert there.low <= there.log_ratio <= there.high
    if floor is not None and abs(there.log_ratio) <= floor:
        assert there.told is Told.NEITHER


def test_identical_measurements_are_no_effect_even_without_a_floor() -> None:
    same = effect(log_ratios([1.0] * 6, [1.0] * 6, lower_is_better=True), None)
    assert (same.log_ratio, same.low, same.high, same.told, same.ratio) == (0.0, 0.0, 0.0, Told.NEITHER, 1.0)


def test_a_difference_of_exactly_the_floor_is_under_it() -> None:
    ratios = [0.05] * 6
    assert effect(ratios, 0.05).told is Told.NEITHER
    assert effect(ratios, 0.049).told is Told.FIRST


def test_orders_alternate() -> None:
    assert abba(4) == [(0, 1), (1, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("num_pairs", [0, 2, 5, 7])
def test_an_order_that_lets_a_drift_through_is_refused(num_pairs: int) -> None:
    with pytest.raises(ValueError, match=f"pairs = {num_pairs}"):
        abba(num_pairs)


@pytest.mark.parametrize(
    ("first", "second"), [([1.0] * 4, [1.0] * 5), ([1.0] * 3, [1.0] * 3), ([0.0] * 4, [1.0] * 4), ([math.nan] * 4, [1.0] * 4)]
)
def test_measurements_that_are_none_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="measurement"):
        log_ratios(first, second, lower_is_better=True)
