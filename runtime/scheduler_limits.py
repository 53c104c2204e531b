"""SchedulerLimits: sizes that the scheduler plans within. SchedulerCounters: what it had to do to stay there."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import ConfigError


@dataclass(frozen=True)
class SchedulerLimits:
    """Sizes fixed at start. ConfigError when one of them leaves no request able to run."""

    max_num_seqs: int  # slots, N
    max_model_len: int  # tokens of prompt + output, L
    max_num_batched_tokens: int  # token rows of a step, T at most
    num_speculative_tokens: int = 0  # k
    synthetic_acceptance: float | None = None  # what the counts of accepted drafts are marked with
    replay: bool = False  # drafts come from a distribution, which ties a sampled text to where its blocks begin (docs/sampling.md)

    def __post_init__(self) -> None:
        if self.max_model_len < 2:
            raise ConfigError(f"max_model_len = {self.max_model_len}: must be at least 2, a prompt token and an output")
        if self.num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens = {self.num_speculative_tokens}: must be at least 0")
        if self.max_num_batched_tokens < self.query_len:
            raise ConfigError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: a decode row has "
                f"1 + num_speculative_tokens = {self.query_len} tokens; raise it or lower num_speculative_tokens"
            )

    @property
    def query_len(self) -> int:
        """Tokens of a decode row, 1 + k."""
        return 1 + self.num_speculative_tokens


@dataclass
class SchedulerCounters:
    """Events since the start, for the statistics line and for tests that must know that a path was taken."""

    preemptions: int = 0
    blocked_rows: int = 0  # rows put off for want of a block
    stale_rows: int = 0  # returned rows that were dropped: their request had left the slot
    capacity_limited: int = 0  # requests that ended with "length" because the whole KV pool is that small
