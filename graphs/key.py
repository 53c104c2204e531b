"""What a captured graph is for: its family and the sizes that were frozen into it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache


class Family(str, Enum):
    """The families of graphs. Which one a step takes is decided from the state of its rows, never from their shape."""

    MIXED = "mixed"  # at least one row is still prefilling; sized by tokens
    DECODE = "decode"  # every row decodes one token
    VERIFY = "verify"  # every row decodes one committed token and verifies k drafts
    LOGPROBS = "logprobs"  # what the model thought of the tokens that the step in front of it emitted
    PROMPT_LOGPROBS = "prompt logprobs"  # and of tokens of the prompt that it prefilled
    PROPOSE = "propose"  # drafts for the next step, from device state alone
    CONTEXT = "context"  # in its place where the next step verifies none: a drafter's context moves on, its drafts are emptied
    CATCH_UP = "catch up"  # a drafter's context is brought up to date with the decode steps that it was not told of at once

    __hash__ = str.__hash__  # Enum's own is a function in Python, and every look-up of a graph hashes its family


@dataclass(frozen=True, order=True)
class GraphKey:
    """The frozen sizes of one graph.

    Attributes:
        family: what the graph computes.
        num_requests: rows R it was captured for; a step of fewer rows is padded up to it.
        query_len: tokens of each row (1 for decode, 1 + k for verify), 0 where rows differ (mixed) or have none (propose).
        num_tokens: token rows T it was captured for: R * query_len, or the token bucket of a mixed step. Of a propose graph: those
            of the step in front of it where the proposer reads them, else 0.
        defers: a decode step behind which nothing is launched: what a drafter would read of it is kept (graphs/draft_backlog.py).
        sampled: a step whose tokens are drawn from processed logits, greedy rows among them. False: argmax of the raw logits, for
            steps in which nobody asks for more.
    """

    family: Family
    num_requests: int
    query_len: int
    num_tokens: int
    sampled: bool = False
    defers: bool = False

    @property
    def on_demand(self) -> bool:
        """Whether only requests that ask for more than plain greedy decoding need it."""
        return self.sampled or self.family in (Family.LOGPROBS, Family.PROMPT_LOGPROBS)

    def __str__(self) -> str:
        if self.family in (Family.PROPOSE, Family.CONTEXT, Family.CATCH_UP):
            tokens = f",T={self.num_tokens}" if self.num_tokens else ""
            return f"{self.family.value}[R={self.num_requests}{tokens}]"
        if self.family in (Family.LOGPROBS, Family.PROMPT_LOGPROBS):
            return f"{self.family.value}[R={self.num_requests}]"
        sizes = f"R={self.num_requests},T={self.num_tokens}"
        sizes += f",q={self.query_len}" if self.query_len else ""
        sizes += ",deferred" * self.defers + ",sampled" * self.sampled
        return f"{self.family.value}[{sizes}]"

    @classmethod
    @cache
    def uniform(cls, num_requests: int, query_len: int, *, defers: bool = False) -> GraphKey:
        """Decode (query_len 1) or verify (1 + k) of `num_requests` rows: token count a multiple of 1 + k by construction."""
        family = Family.DECODE if query_len == 1 else Family.VERIFY
        return cls(family, num_requests, query_len, num_requests * query_len, defers=defers)

    @classmethod
    def mixed(cls, num_requests: int, num_tokens: int) -> GraphKey:
        return cls(Family.MIXED, num_requests, 0, num_tokens)

    @classmethod
    def logprobs(cls, num_requests: int) -> GraphKey:
        return cls(Family.LOGPROBS, num_requests, 0, 0)

    @classmethod
    @cache
    def context(cls, num_requests: int, num_tokens: int) -> GraphKey:
        return cls(Family.CONTEXT, num_requests, 0, num_tokens)

    @classmethod
    def catch_up(cls, num_slots: int, depth: int) -> GraphKey:
        """Of the slots below `num_slots`, for each of which `depth` token rows may wait."""
        return cls(Family.CATCH_UP, num_slots, 0, num_slots * depth)

    @classmethod
    def prompt_logprobs(cls, num_rows: int) -> GraphKey:
        return cls(Family.PROMPT_LOGPROBS, num_rows, 0, 0)

    @classmethod
    @cache
    def propose(cls, num_requests: int, num_tokens: int = 0) -> GraphKey:
        return cls(Family.PROPOSE, num_requests, 0, num_tokens)


class Buckets:
    """Sizes that are captured, ascending. `up(n)` is the smallest that holds n."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = tuple(sorted(set(sizes)))
        if not self.sizes or self.sizes[0] < 1:
            raise ValueError(f"bucket sizes = {self.sizes}: at least one, each at least 1")

    def up(self, n: int) -> int | None:
        """The smallest bucket that holds `n`, None when even the largest is too small."""
        at = bisect_left(self.sizes, n)
        return self.sizes[at] if at < len(self.sizes) else None

    @classmethod
    def reaching(cls, largest: int, asked: Iterable[int] | None = None, *, smallest: int = 1) -> Buckets:
        """The sizes asked for that can occur, and the largest that must be there; powers of two by default."""
        if asked is None:
            return cls.powers(largest, smallest=min(smallest, largest))
        return cls([*(size for size in asked if size < largest), largest])

    @classmethod
    def powers(cls, largest: int, smallest: int = 1) -> Buckets:
        """smallest, 2*smallest, 4*smallest ... and `largest` itself."""
        sizes = {largest}
        size = smallest
        while size < largest:
            sizes.add(size)
            size *= 2
        return cls(sizes)
