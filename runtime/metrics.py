"""Acceptance of drafts and latency of requests, in the conventions that serving engines publish.

Acceptance follows vLLM's counters and per-request record: the bonus token counts in the mean acceptance length, a
draft is one verify step of one request with at least one valid draft token, and per-position rates are unconditional.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class AcceptanceStats:
    """Counts of verify steps with up to num_speculative_tokens = k drafts each.

    `accepted` of a step is its emitted tokens - 1. That holds at a stop inside the block as well: a block that ends
    with its third token emitted three, so two count as accepted and the length of the step is three. Placeholders that
    were never verified, and frames that were dropped, do not enter.

    synthetic: the rate, where a hash accepted the drafts and not the target: these counts then say nothing of a drafter.
    """

    def __init__(self, num_speculative_tokens: int, synthetic: float | None = None) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens = {num_speculative_tokens}: must be at least 0")
        self.num_speculative_tokens = num_speculative_tokens
        self.synthetic = synthetic
        self.histogram = [0] * (num_speculative_tokens + 1)  # histogram[a] = steps that accepted a drafts
        self.num_draft_tokens = 0

    @classmethod
    def from_per_position(
        cls, accepted_per_position: Sequence[int], num_drafts: int, num_draft_tokens: int
    ) -> AcceptanceStats:
        """From cumulative counters: accepted_per_position[i] steps accepted more than i drafts (non-increasing)."""
        counts = [num_drafts, *accepted_per_position, 0]
        if any(late > early or late < 0 for early, late in itertools.pairwise(counts)):
            raise ValueError(
                f"accepted_per_position = {list(accepted_per_position)}: must not increase, from {num_drafts} to 0"
            )
        stats = cls(len(accepted_per_position))
        stats.histogram = [early - late for early, late in itertools.pairwise(counts)]
        stats.num_draft_tokens = num_draft_tokens
        return stats

    def add_step(self, drafted: int, accepted: int) -> None:
        """One verify step of one request. drafted = 0 is no draft and is not counted."""
        if not 0 <= accepted <= drafted <= self.num_speculative_tokens:
            raise ValueError(
                f"drafted = {drafted}, accepted = {accepted}: "
                f"need 0 <= accepted <= drafted <= {self.num_speculative_tokens}"
            )
        if drafted:
            self.histogram[accepted] += 1
            self.num_draft_tokens += drafted

    def shorten_step(self, drafted: int, accepted: int, kept: int) -> None:
        """A step that was counted with `accepted` drafts kept only `kept` of them: the rest stood behind a stop string."""
        if not 0 <= kept <= accepted or (drafted and not self.histogram[accepted]):
            raise ValueError(f"drafted = {drafted}, accepted = {accepted}, kept = {kept}: no such step was counted")
        if drafted:
            self.histogram[accepted] -= 1
            self.histogram[kept] += 1

    def merge(self, other: AcceptanceStats) -> None:
        """Add the counts of another object with the same k."""
        if other.num_speculative_tokens != self.num_speculative_tokens:
            raise ValueError(
                f"num_speculative_tokens = {other.num_speculative_tokens}: cannot be merged into "
                f"{self.num_speculative_tokens}, per-position rates would mix"
            )
        if other.synthetic != self.synthetic:
            raise ValueError(f"synthetic = {other.synthetic}: cannot be merged into {self.synthetic}, which was accepted otherwise")
        self.histogram = [mine + theirs for mine, theirs in zip(self.histogram, other.histogram, strict=True)]
        self.num_draft_tokens += other.num_draft_tokens

    @property
    def num_drafts(self) -> int:
        """Verify steps with at least one valid draft token."""
        return sum(self.histogram)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(accepted * steps for accepted, steps in enumerate(self.histogram))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts, in tokens a step, 1 .. 1 + k; 1 without a step."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / draft tokens, 0 .. 1; 0 without a step."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def per_position_acceptance(self) -> list[float]:
        """[k] share of all steps that accepted the draft at this position; sums to mean_acceptance_length - 1."""
        if not self.num_drafts:
            return [0.0] * self.num_speculative_tokens
        return [
            sum(self.histogram[position + 1 :]) / self.num_drafts for position in range(self.num_speculative_tokens)
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON form, with the field names of vLLM's per-request record."""
        marked = {} if self.synthetic is None else {"acceptance": f"synthetic:{self.synthetic:g}"}
        return marked | {
            "num_spec_tokens": self.num_speculative_tokens,
            "num_spec_steps": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "per_position_acceptance": self.per_position_acceptance,
            "acceptance_histogram": {str(accepted): steps for accepted, steps in enumerate(self.histogram)},
        }


def conditional_rates(unconditional: Sequence[float]) -> list[float]:
    """Acceptance of position i given that i - 1 was accepted: rate[i] / rate[i - 1], 0 / 0 = 0."""
    _check_rates(unconditional)
    rates = []
    previous = 1.0
    for rate in unconditional:
        rates.append(rate / previous if previous else 0.0)
        previous = rate
    return rates


def mean_length(unconditional: Sequence[float]) -> float:
    """Mean acceptance length of unconditional per-position rates, the bonus counted."""
    _check_rates(unconditional)
    return 1.0 + sum(unconditional)


def rates_from_mean_length(length: float, num_speculative_tokens: int) -> list[float]:
    """Unconditional rates of a given mean length: 1 as long as it lasts, then the fraction, then 0.

    The steps then differ by at most one token, which is the least noise that a timed run with this length can have.
    """
    if not 1.0 <= length <= 1 + num_speculative_tokens:
        raise ValueError(
            f"mean acceptance length = {length}: must be in 1 .. {1 + num_speculative_tokens}, "
            f"as num_speculative_tokens = {num_speculative_tokens}"
        )
    return [min(1.0, max(0.0, length - 1.0 - position)) for position in range(num_speculative_tokens)]


def _check_rates(unconditional: Sequence[float]) -> None:
    steps = [1.0, *unconditional, 0.0]
    if any(not later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"acceptance rates = {list(unconditional)}: must lie in 0 .. 1 and not increase")


@dataclass(frozen=True)
class RequestTimes:
    """Times of one request in seconds of the engine's clock; None while there is no token."""

    arrival: float
    first_token: float | None
    last_token: float | None
    num_output_tokens: int

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, queueing included."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """(latency - TTFT) / (output tokens - 1): per token, not per step; None below two tokens."""
        if self.first_token is None or self.last_token is None or self.num_output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.num_output_tokens - 1)
