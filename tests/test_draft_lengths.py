"""How many drafts a step verifies: by the number of requests, by what pays, as a configuration says."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest

from runtime.config import load_config
from runtime.draft_calibration import CANDIDATES, draft_lengths
from runtime.draft_lengths import (
    LEAST_GAIN,
    MEMORY,
    PROBE_FIRST,
    PROBE_LAST,
    PROBE_STEPS,
    TAKE_UP_GAIN,
    Acceptance,
    AdaptiveLengths,
    PlainSpell,
    RangedLengths,
)
from runtime.errors import ConfigError

CHEAP = {(1, 0): 1.0, (1, 1): 1.05, (1, 3): 1.2, (1, 7): 1.4}
"""Seconds of a step of one request: drafts cost little."""
DEAR = {(1, 0): 1.0, (1, 1): 1.5, (1, 3): 2.0, (1, 7): 3.0}


# ---- policies ---------------------------------------------------------------------------------------------------------------


def test_ranges() -> None:
    lengths = RangedLengths({1: 7, 5: 3, 17: 0})
    assert lengths.choices == (0, 3, 7)
    assert [lengths.choose(batch) for batch in (1, 4, 5, 16, 17, 99)] == [7, 7, 3, 3, 0, 0]
    assert lengths.describe() == {"by_requests": {"from 1": 7, "from 5": 3, "from 17": 0}, "steps_by_k": {0: 2, 3: 2, 7: 2}}


def test_acceptance_is_conditional_and_fades() -> None:
    acceptance = Acceptance(3)
    for _ in range(500):
        acceptance.observe(3, 1)
    first, second, third = acceptance.rates()
    assert first > 0.95
    assert second < 0.1
    assert third < 0.1  # never tried: believed to do as the one before
    assert acceptance.tokens(0) == 1.0
    assert acceptance.tokens(1) == pytest.approx(2.0, abs=0.05)
    for _ in range(3 * int(MEMORY)):
        acceptance.observe(3, 0)
    assert acceptance.rates()[0] < 0.1, "what was true once is forgotten"


def test_what_is_kept_of_the_past_weighs_less() -> None:
    acceptance, fresh = Acceptance(2), Acceptance(2)
    assert fresh.unseen
    for each in (acceptance, fresh):
        for _ in range(100):
            each.observe(2, 2)
        assert not each.unseen
    acceptance.keep(0.1)
    assert acceptance.rates() == pytest.approx(fresh.rates())
    for each in (acceptance, fresh):
        for _ in range(5):
            each.observe(2, 0)
    assert acceptance.rates()[0] < fresh.rates()[0] - 0.1


def test_a_position_beyond_what_was_scheduled_is_not_judged() -> None:
    acceptance = Acceptance(3)
    for _ in range(100):
        acceptance.observe(1, 1)
    assert min(acceptance.rates()) > 0.9


@pytest.mark.parametrize(
    ("accepted", "step_s", "best"), [(7, CHEAP, 7), (1, CHEAP, 1), (0, CHEAP, 0), (7, DEAR, 7), (1, DEAR, 1), (0, DEAR, 0)]
)
def test_what_pays_is_chosen(accepted: int, step_s: dict[tuple[int, int], float], best: int) -> None:
    lengths = AdaptiveLengths([0, 1, 3, 7], step_s)
    for _ in range(300):
        k = lengths.choose(1)
        if k:
            lengths.observe(k, min(accepted, k))
    assert lengths.describe()["chosen"]["1 requests"].startswith(f"{best}: ")


def test_drafts_that_are_never_right_cost_next_to_nothing() -> None:
    """Time over plain decoding: the first steps, until it is seen, and a few of every 256 that look again."""
    lengths, spent, steps = AdaptiveLengths([0, 1, 3, 7], DEAR), 0.0, 4096
    for _ in range(steps):
        k = lengths.choose(1)
        spent += DEAR[1, k]
        if k:
            lengths.observe(k, 0)
    assert spent - steps < 20 * 2.0 + 5 * PROBE_STEPS * (DEAR[1, 7] - 1.0)
    assert lengths.describe()["steps_by_k"][0] > 0.99 * steps


def test_probes_become_rarer_and_never_end() -> None:
    spell = PlainSpell(PROBE_FIRST)
    probed = [step for step in range(1, 6 * PROBE_LAST) if spell.probes()]
    starts = probed[::PROBE_STEPS]
    assert probed == [start + step for start in starts for step in range(PROBE_STEPS)]
    assert starts[0] == PROBE_FIRST
    gaps = [late - early for early, late in pairwise(starts)]
    assert gaps[:5] == [PROBE_FIRST + 1, 2 * PROBE_FIRST + 1, 4 * PROBE_FIRST + 1, 8 * PROBE_FIRST + 1, PROBE_LAST + 1]
    assert set(gaps[5:]) == {PROBE_LAST + 1}


def test_nothing_is_known_before_the_first_look() -> None:
    """Drafts that would not be believed to pay enough are tried at once, and not again before long."""
    table = {(8, 0): 1.0, (8, 7): Acceptance(7).tokens(7) / (1.0 + TAKE_UP_GAIN / 2)}
    lengths = AdaptiveLengths([0, 7], table)
    chosen = []
    for _ in range(40):
        chosen.append(lengths.choose(8))
        for _ in range(8 * (chosen[-1] > 0)):
            lengths.observe(7, 1)
    assert chosen == [7] * PROBE_STEPS + [0] * (40 - PROBE_STEPS)
    good = AdaptiveLengths([0, 7], table)
    for _ in range(40):
        k = good.choose(8)
        for _ in range(8 * (k > 0)):
            good.observe(7, 7)
    assert good.describe()["steps_by_k"] == {7: 40}


def test_a_length_that_became_slower_than_plain_is_left_at_once() -> None:
    """Though by less than what a change for the better must bring."""
    later = Acceptance(1)
    for number in range(300):
        later.observe(1, number % 3 == 0)
    lengths = AdaptiveLengths([0, 1], {(1, 0): 1.0, (1, 1): later.tokens(1) * (1.0 + LEAST_GAIN / 2)})
    lengths.choose(1)
    assert lengths.describe()["chosen"]["1 requests"].startswith("1: ")  # believed to yield 1.6 tokens
    for number in range(300):
        lengths.observe(1, number % 3 == 0)
    lengths.choose(1)
    assert lengths.describe()["chosen"]["1 requests"].startswith("0: ")


def test_speculation_comes_back_when_it_pays_again() -> None:
    lengths = AdaptiveLengths([0, 1, 3, 7], CHEAP)
    for number in range(6 * PROBE_LAST):
        k = lengths.choose(1)
        if k:
            lengths.observe(k, 0 if number < 1000 else k)
    assert lengths.describe()["chosen"]["1 requests"].startswith("7: ")


def test_plain_decoding_is_not_left_for_a_few_percent() -> None:
    """And drafts that are under way are not given up for it."""
    rate = Acceptance(1)
    for number in range(400):
        rate.observe(1, number % 2)
    believed = rate.tokens(1)
    for gain, first in ((TAKE_UP_GAIN - 0.03, 0), (TAKE_UP_GAIN + 0.03, 1)):
        lengths = AdaptiveLengths([0, 1], {(8, 0): 1.0, (8, 1): believed / (1.0 + gain)})
        for number in range(400):
            lengths.observe(1, number % 2)
        assert lengths.choose(8) == first
    # Believed of drafts that nobody has seen: 1.6 tokens, taken up; later they yield 5 % more than plain decoding.
    rate = Acceptance(1)
    for number in range(600):
        rate.observe(1, number % 3 == 0)
    lengths = AdaptiveLengths([0, 1], {(8, 0): 1.0, (8, 1): rate.tokens(1) / 1.05})
    assert lengths.choose(8) == 1
    for number in range(600):
        lengths.observe(1, number % 3 == 0)
        assert lengths.choose(8) == 1
    assert lengths.describe()["chosen"]["8 requests"].startswith("1: ")


def test_a_gain_within_the_noise_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Both lengths yield nearly the same: the choice stays where it is, and a change is said once."""
    lengths = AdaptiveLengths([0, 1, 2], {(1, 0): 9.0, (1, 1): 2.0, (1, 2): 3.0 / (1.0 + LEAST_GAIN / 2)})
    with caplog.at_level(logging.DEBUG, logger="runtime.draft_lengths"):
        for _ in range(400):
            k = lengths.choose(1)
            lengths.observe(k, k)
    assert [record.getMessage()[:36] for record in caplog.records] == ["drafts a step at 1 requests: 1, 1.60"]


def test_each_bucket_has_its_own_choice() -> None:
    table = {**CHEAP, **{(8, k): seconds for (_, k), seconds in DEAR.items()}}
    lengths = AdaptiveLengths([0, 1, 3, 7], table)
    for _ in range(200):
        lengths.observe(7, 1)
    assert (lengths.choose(1), lengths.choose(2), lengths.choose(8), lengths.choose(9)) == (1, 1, 1, 1)
    for _ in range(1200):
        lengths.observe(1, 0)
    assert {lengths.describe()["chosen"][f"{bucket} requests"][:1] for bucket in (1, 8)} == {"1"}
    lengths.choose(1), lengths.choose(8)
    assert {lengths.describe()["chosen"][f"{bucket} requests"][:1] for bucket in (1, 8)} == {"0"}


@pytest.mark.parametrize(("choices", "table"), [([1, 3], CHEAP), ([0, 2], CHEAP), ([0, 1], {})])
def test_tables_with_holes_are_refused(choices: list[int], table: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match=r"must hold 0|step_s has no time for"):
        AdaptiveLengths(choices, table)


# ---- configuration ----------------------------------------------------------------------------------------------------------


def speculator(value: object) -> Any:
    return load_config({"model": {"source": "x"}, "speculator": {"method": "ngram", "num_speculative_tokens": value}}).speculator


def test_what_a_configuration_may_say() -> None:
    assert (speculator(5).k, draft_lengths(speculator(5))) == (5, None)
    ranged = speculator({5: 3, 1: 7, 17: 0})
    assert (ranged.k, ranged.ranges, draft_lengths(ranged)) == (7, {1: 7, 5: 3, 17: 0}, (0, 3, 7))
    auto = speculator("auto")
    assert (auto.k, auto.adapts, draft_lengths(auto)) == (7, True, (*CANDIDATES, 7))
    config = load_config({"model": {"source": "x"}, "speculator": {"method": "ngram", "num_speculative_tokens": {1: 7, 2: 0}}})
    assert load_config(config.as_dict()).speculator.ranges == {1: 7, 2: 0}


@pytest.mark.parametrize("value", ["many", -1, 65, True, 2.0, {}, {2: 3}, {1: 65}, {1: "3"}, {0: 3, 1: 2}, [1, 2], None])
def test_what_it_may_not_say(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"speculator\.num_speculative_tokens = .*: must be auto, an integer of 0\.\.64, or drafts by"
    ):
        speculator(value)
