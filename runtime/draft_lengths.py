"""How many drafts the decode rows of a step verify: always k, as many as the batch allows, or what has paid so far."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

logger = logging.getLogger(__name__)

PRIOR_RATE, PRIOR_WEIGHT = 0.6, 12.0
"""What is believed of a position that was never observed, and how many observations that belief is worth; it fades like they do."""

MEMORY = 512.0
"""Observations of a position that count; older ones fade. Of 64, which eight requests yield in eight steps, the mean is off by a
tenth often enough to change the choice back and forth."""

LEAST_GAIN = 0.02
"""A length is taken for another one that is better by this share: below it the difference is noise, and every change costs."""

TAKE_UP_GAIN = 0.15
"""Plain decoding is left for drafts that are better by this share. Step times are not the whole price: requests that get on by
different numbers of tokens end one by one, and every prompt that takes a place then costs a step of its own. Of eight requests of
SmolLM2 on an H200 drafts that should have been 4 and 7 % better were within 1 % of plain decoding, and what took them up at a tenth
and gave them up again was 3 % slower."""

PROBE_STEPS = 2
PROBE_FIRST, PROBE_LAST = 256, 4096
"""While speculation does not pay, two steps draft all the same to notice when it begins to: after 256 plain ones, then after 512
and so on, up to every 4096."""

KEPT_AT_A_PROBE = 0.7
"""How much of what was observed before still counts with each of these steps: it is old."""


class DraftLengths(Protocol):
    """The scheduler asks `choose` once a step, in launch order, and reports what came of the drafts."""

    @property
    def choices(self) -> tuple[int, ...]:
        """Every length that `choose` may answer, ascending: a graph is captured for each."""
        ...

    def choose(self, batch: int) -> int:
        """Drafts of each decode row of the next step, at most `batch` of them."""
        ...

    def observe(self, scheduled: int, accepted: int) -> None:
        """A decode row with `scheduled` places for drafts, some perhaps empty, accepted `accepted` of them and went on."""
        ...

    def describe(self) -> dict[str, Any]:
        """What was chosen, and why."""
        ...


class FixedLength:
    """Always k drafts."""

    def __init__(self, k: int) -> None:
        self.choices = (k,)

    def choose(self, batch: int) -> int:
        return self.choices[0]

    def observe(self, scheduled: int, accepted: int) -> None:
        """It does not learn."""

    def describe(self) -> dict[str, Any]:
        return {}


class RangedLengths:
    """k by the number of requests: `ranges` maps the smallest batch of each range, 1 among them, to its k."""

    def __init__(self, ranges: Mapping[int, int]) -> None:
        self._ranges = sorted(ranges.items(), reverse=True)
        self.choices = tuple(sorted(set(ranges.values())))
        self._steps: Counter[int] = Counter()

    def choose(self, batch: int) -> int:
        k = next((k for least, k in self._ranges if batch >= least), self._ranges[-1][1])
        self._steps[k] += 1
        return k

    def observe(self, scheduled: int, accepted: int) -> None:
        """It does not learn."""

    def describe(self) -> dict[str, Any]:
        ranges = {f"from {least}": k for least, k in reversed(self._ranges)}
        return {"by_requests": ranges, "steps_by_k": dict(sorted(self._steps.items()))}


class Acceptance:
    """Conditional acceptance rate of each position, as it has been of late: P(accepted | all before it were)."""

    def __init__(self, k: int) -> None:
        self._accepted, self._seen, self._prior = [0.0] * k, [0.0] * k, [PRIOR_WEIGHT] * k

    @property
    def unseen(self) -> bool:
        """Not a draft was observed."""
        return not any(self._seen)

    def keep(self, share: float) -> None:
        """Of what is believed only `share` counts from now on."""
        for weights in (self._accepted, self._seen, self._prior):
            weights[:] = [share * weight for weight in weights]

    def observe(self, scheduled: int, accepted: int) -> None:
        """Positions up to the first that was not accepted were tried; a draft that was missing was not accepted."""
        for position in range(min(accepted + 1, scheduled)):
            fade = 1.0 - 1.0 / MEMORY
            self._prior[position] *= fade
            self._seen[position] = self._seen[position] * fade + 1.0
            self._accepted[position] = self._accepted[position] * fade + (position < accepted)

    def rates(self) -> list[float]:
        """A position is believed to do as the one before it until it has been seen."""
        rates, believed = [], PRIOR_RATE
        for accepted, seen, prior in zip(self._accepted, self._seen, self._prior, strict=True):
            believed = (accepted + prior * believed) / (seen + prior)
            rates.append(believed)
        return rates

    def tokens(self, k: int) -> float:
        """Expected tokens of a step with k drafts."""
        total = product = 1.0
        for rate in self.rates()[:k]:
            product *= rate
            total += product
        return total


class PlainSpell:
    """Steps that a number of requests has decoded plainly in a row.

    Args:
        first: after how many of them drafts are tried.
    """

    def __init__(self, first: int) -> None:
        self.steps, self._due, self._wait = 0, first, PROBE_FIRST

    def probes(self) -> bool:
        """Count one more; should it draft all the same?"""
        self.steps += 1
        if self.steps < self._due:
            return False
        if self.steps >= self._due + PROBE_STEPS - 1:
            self._due, self._wait = self.steps + self._wait, min(2 * self._wait, PROBE_LAST)
        return True


class AdaptiveLengths:
    """The length that yields most tokens in a second, by the step times of this machine and the acceptance of late; 0 where
    drafting does not pay, so that speculation is not slower than plain decoding.

    Args:
        choices: lengths with captured graphs, 0 among them.
        step_s: seconds of a step by (batch bucket, length), for every bucket and choice.
    """

    def __init__(self, choices: Sequence[int], step_s: Mapping[tuple[int, int], float]) -> None:
        self.choices = tuple(sorted(set(choices)))
        if self.choices[0] != 0:
            raise ValueError(f"choices = {self.choices}: must hold 0, plain decoding")
        self._step_s = dict(step_s)
        self._buckets = sorted({bucket for bucket, _ in step_s})
        missing = [(b, k) for b in self._buckets for k in self.choices if (b, k) not in self._step_s]
        if missing or not self._buckets:
            raise ValueError(f"step_s has no time for {missing or 'any batch'}")
        self.acceptance = Acceptance(self.choices[-1])
        self._chosen: dict[int, int] = {}
        self._spells: dict[int, PlainSpell] = {}
        # What follows from the observations so far: computed once for all steps that observe nothing.
        self._tokens: dict[int, float] = {}
        self._holding: dict[int, int] = {}
        self._steps: Counter[int] = Counter()

    def choose(self, batch: int) -> int:
        bucket = self._buckets[min(bisect_left(self._buckets, batch), len(self._buckets) - 1)]
        k = self._holding.get(bucket)
        if k is None:
            k = self._holding[bucket] = self._settled(bucket)
        if k:
            self._spells.pop(bucket, None)
        elif self._probes(bucket):
            k = self._best([choice for choice in self.choices if choice > 0], bucket)
        self._steps[k] += 1
        return k

    def _probes(self, bucket: int) -> bool:
        """One more plain step: does it draft all the same? At once where nothing is known of the drafts yet."""
        if bucket not in self._spells:
            self._spells[bucket] = PlainSpell(1 if self.acceptance.unseen else PROBE_FIRST)
        probing = self._spells[bucket].probes()
        if probing and not self.acceptance.unseen:
            self.acceptance.keep(KEPT_AT_A_PROBE)
            self._forget()
        return probing

    def observe(self, scheduled: int, accepted: int) -> None:
        self.acceptance.observe(scheduled, accepted)
        self._forget()

    def _forget(self) -> None:
        self._tokens.clear()
        self._holding.clear()

    def _settled(self, bucket: int) -> int:
        """The length that holds at present. One that is better by more than noise takes its place; plain decoding at once."""
        now, best = self._chosen.get(bucket, 0), self._best(self.choices, bucket)
        if self._rate(now, bucket) < self._rate(0, bucket):
            now = 0
        if self._rate(best, bucket) > (1.0 + (LEAST_GAIN if now else TAKE_UP_GAIN)) * self._rate(now, bucket):
            now = best
        if now != self._chosen.get(bucket):
            # Not for a terminal on which an answer is being written; `describe` has it all.
            logger.debug("drafts a step at %d requests: %d, %s", bucket, now, self._reason(now, bucket))
            self._chosen[bucket] = now
        return now

    def _best(self, choices: Sequence[int], bucket: int) -> int:
        return max(choices, key=lambda k: self._rate(k, bucket))

    def _rate(self, k: int, bucket: int) -> float:
        """Tokens in a second of one request."""
        tokens = self._tokens.get(k)
        if tokens is None:
            tokens = self._tokens[k] = self.acceptance.tokens(k)
        return tokens / self._step_s[bucket, k]

    def _reason(self, k: int, bucket: int) -> str:
        plain = self._step_s[bucket, 0] * 1e3
        if k == 0:
            other = self._best(self.choices[1:], bucket)
            tokens, spent = self.acceptance.tokens(other), self._step_s[bucket, other] * 1e3
            return f"a plain step takes {plain:.3f} ms; {other} drafts would yield {tokens:.2f} tokens in {spent:.3f} ms"
        tokens, spent = self.acceptance.tokens(k), self._step_s[bucket, k] * 1e3
        return f"{tokens:.2f} tokens in {spent:.3f} ms; a plain step yields one in {plain:.3f} ms"

    def describe(self) -> dict[str, Any]:
        """The table of step times, what is believed of each position, and the choice of each batch with its reason."""
        return {
            "step_ms": {
                f"{bucket} requests": {k: round(self._step_s[bucket, k] * 1e3, 3) for k in self.choices} for bucket in self._buckets
            },
            "conditional_acceptance": [round(rate, 3) for rate in self.acceptance.rates()],
            "chosen": {f"{bucket} requests": f"{k}: {self._reason(k, bucket)}" for bucket, k in sorted(self._chosen.items())},
            "steps_by_k": dict(sorted(self._steps.items())),
        }


class ScriptedLengths:
    """Lengths of a list, one after the other and again from the start: a decision table that a test can foresee."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = tuple(lengths)
        self.choices = tuple(sorted(set(lengths)))
        self._asked = 0

    def choose(self, batch: int) -> int:
        self._asked += 1
        return self._lengths[(self._asked - 1) % len(self._lengths)]

    def observe(self, scheduled: int, accepted: int) -> None:
        """It does not learn."""

    def describe(self) -> dict[str, Any]:
        return {"by_step": list(self._lengths)}
