"""Acceptance arithmetic (vectors Z1-Z9) and latency arithmetic."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.metrics import (
    AcceptanceStats,
    RequestTimes,
    conditional_rates,
    mean_length,
    rates_from_mean_length,
)


def stats_of(k: int, steps: list[tuple[int, int]]) -> AcceptanceStats:
    stats = AcceptanceStats(k)
    for drafted, accepted in steps:
        stats.add_step(drafted, accepted)
    return stats


def test_z1_conditional_rates_and_mean_length() -> None:
    assert conditional_rates([0.9, 0.5, 0.2]) == pytest.approx([0.9, 0.555556, 0.4], abs=1e-6)
    assert mean_length([0.9, 0.5, 0.2]) == pytest.approx(2.6)


@pytest.mark.parametrize("rates", [[1, 0.6, 0, 0], [1, 1, 1], [0, 0, 0]])
def test_z2_zero_over_zero_is_zero(rates: list[float]) -> None:
    assert conditional_rates(rates) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("length", "k", "rates"),
    [
        (2.6, 3, [1, 0.6, 0]),
        (1, 3, [0, 0, 0]),
        (4, 3, [1, 1, 1]),
        (2, 3, [1, 0, 0]),
        (3.5, 4, [1, 1, 0.5, 0]),
        (1, 0, []),
    ],
)
def test_z3_rates_from_mean_length(length: float, k: int, rates: list[float]) -> None:
    assert rates_from_mean_length(length, k) == pytest.approx(rates)
    assert mean_length(rates_from_mean_length(length, k)) == pytest.approx(length)


@pytest.mark.parametrize(("length", "k"), [(0.9, 3), (4.1, 3), (float("nan"), 3)])
def test_lengths_out_of_range_are_refused(length: float, k: int) -> None:
    with pytest.raises(ValueError, match="mean acceptance length"):
        rates_from_mean_length(length, k)


@pytest.mark.parametrize("rates", [[0.5, 0.6], [1.1], [-0.1], [float("nan")]])
def test_rates_that_cannot_be_are_refused(rates: list[float]) -> None:
    for function in (conditional_rates, mean_length):
        with pytest.raises(ValueError, match="acceptance rates"):
            function(rates)


def test_z4_request() -> None:
    stats = stats_of(3, [(3, 0), (3, 3), (3, 2), (3, 3), (3, 1)])
    assert stats.histogram == [1, 1, 1, 2]
    assert (stats.num_draft_tokens, stats.num_drafts, stats.num_accepted_tokens) == (15, 5, 9)
    assert stats.mean_acceptance_length == pytest.approx(2.8)
    assert stats.draft_acceptance_rate == pytest.approx(0.6)


def test_z5_draft_sizes_vary() -> None:
    stats = stats_of(4, [(4, 3), (2, 2), (4, 0)])
    assert stats.histogram == [1, 0, 1, 1, 0]
    assert stats.num_draft_tokens == 10
    assert stats.per_position_acceptance == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0])


def test_z6() -> None:
    assert stats_of(3, [(3, 0), (3, 0), (3, 3)]).histogram == [2, 0, 0, 1]


@pytest.mark.parametrize("steps", [[(2, 0)] * 4, []])
def test_z7_nothing_accepted_or_no_step(steps: list[tuple[int, int]]) -> None:
    stats = stats_of(2, steps)
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate) == (1.0, 0.0)
    assert stats.per_position_acceptance == [0.0, 0.0]


def test_z8() -> None:
    stats = stats_of(3, [(2, 1), (3, 1)])
    assert stats.histogram == [0, 2, 0, 0]
    assert stats.num_draft_tokens == 5


def test_z9_from_counters() -> None:
    stats = AcceptanceStats.from_per_position([12, 8, 4], num_drafts=12, num_draft_tokens=36)
    assert stats.num_accepted_tokens == 24
    assert stats.mean_acceptance_length == pytest.approx(3.0)
    assert 100 * stats.draft_acceptance_rate == pytest.approx(66.67, abs=0.005)
    assert stats.per_position_acceptance == pytest.approx([1, 0.667, 0.333], abs=0.001)


def test_counters_that_increase_are_refused() -> None:
    for counts, num_drafts in (([3, 4], 5), ([6], 5), ([2, -1], 5)):
        with pytest.raises(ValueError, match="must not increase"):
            AcceptanceStats.from_per_position(counts, num_drafts, 10)


def test_a_row_without_a_valid_draft_is_no_draft() -> None:
    stats = stats_of(3, [(0, 0), (3, 2), (0, 0)])
    assert stats.num_drafts == 1
    assert stats.mean_acceptance_length == 3.0


@pytest.mark.parametrize(("drafted", "accepted"), [(2, 3), (4, 1), (2, -1), (-1, -1)])
def test_impossible_steps_are_refused(drafted: int, accepted: int) -> None:
    with pytest.raises(ValueError, match=f"drafted = {drafted}"):
        AcceptanceStats(3).add_step(drafted, accepted)


def test_merge_adds_and_refuses_another_k() -> None:
    stats = stats_of(3, [(3, 1)])
    stats.merge(stats_of(3, [(2, 2), (3, 0)]))
    assert stats.histogram == [1, 1, 1, 0]
    assert stats.num_draft_tokens == 8
    with pytest.raises(ValueError, match="per-position rates would mix"):
        stats.merge(AcceptanceStats(4))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (max(pair), min(pair)))))
def test_identities_of_the_convention(steps: list[tuple[int, int]]) -> None:
    stats = stats_of(5, steps)
    rates = stats.per_position_acceptance
    assert all(late <= early for early, late in itertools.pairwise(rates))
    assert sum(rates) == pytest.approx(stats.mean_acceptance_length - 1)
    assert sum(stats.histogram) == stats.num_drafts == sum(drafted > 0 for drafted, _ in steps)


def test_as_dict_is_json_with_the_published_names() -> None:
    record = json.loads(json.dumps(stats_of(2, [(2, 1), (2, 2)]).as_dict()))
    assert record == {
        "num_spec_tokens": 2,
        "num_spec_steps": 2,
        "num_draft_tokens": 4,
        "num_accepted_draft_tokens": 3,
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.75,
        "per_position_acceptance": [1.0, 0.5],
        "acceptance_histogram": {"0": 0, "1": 1, "2": 1},
    }


def test_tpot_is_per_token_after_the_first() -> None:
    times = RequestTimes(arrival=10.0, first_token=12.0, last_token=20.0, num_output_tokens=5)
    assert (times.ttft_s, times.tpot_s) == (2.0, 2.0)
    assert RequestTimes(10.0, 12.0, 12.0, 1).tpot_s is None
    assert RequestTimes(10.0, None, None, 0).ttft_s is None
