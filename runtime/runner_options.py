"""RunnerOptions: how a runner stages and launches, as the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class RunnerOptions:
    """How a runner stages and launches.

    Attributes:
        steps_in_flight: steps queued and not collected, the one being prepared included.
        graph_mode: "graph" replays captured graphs, "eager" runs the recorders at every step.
        buckets, token_buckets: rows of uniform steps, tokens of mixed steps; None = powers of two.
        eos_token_ids: end a request unless its parameters say otherwise.
        poison: fill host copies that the device overtakes.
        dot_folder: receives each graph as a Graphviz file.
        draft_lengths: every number of drafts that a step may verify; None = always num_speculative_tokens.
        synthetic_acceptance: share of drafts that a hash accepts instead of the target, for timing.
    """

    steps_in_flight: int
    graph_mode: Literal["graph", "eager"] = "graph"
    buckets: Sequence[int] | None = None
    token_buckets: Sequence[int] | None = None
    eos_token_ids: tuple[int, ...] = ()
    poison: bool = False
    dot_folder: Path | None = None
    synthetic_acceptance: float | None = None
    draft_lengths: tuple[int, ...] | None = None
