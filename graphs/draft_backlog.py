"""Decode steps that a drafter is not told of at once: what it would read of them waits, until its context is brought up to date.

While nothing is drafted, a context that keeps up with every step costs a graph behind each of them, which a batch of small steps
feels. Kept are the taps of each row and where it belongs, in the step's own graph; once for all of them one graph makes keys and
values of what waits. When that has to be is decided by the host (runtime/context_backlog.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from kernels.keep_taps import keep_taps

KEEP_THREADS = 256


@dataclass(frozen=True)
class ContextRows:
    """Token rows that are to enter a drafter's context: T of them at most, `live` [1] of them now."""

    features: Array  # [T, F], storage type
    positions: Array  # [T]
    token_slot: Array  # [T]
    slot_mapping: Array  # [T], negative: the row has no page, or there is none
    live: Array  # [1]


@dataclass(frozen=True)
class BacklogArrays:
    """What waits, by slot and position: row slot * depth + position % depth. N slots, D = depth; int32 but for the features."""

    features: Array  # [N * D, F], storage type
    positions: Array  # [N * D]
    cells: Array  # [N * D], negative: nothing waits there
    slots: Array  # [N * D]: whose row it is; constant
    counts: Array  # [N + 1]: rows of so many slots; constant


Append = Callable[[Launcher, GraphKey, SlotState, StepArrays, ContextRows], None]


class DraftBacklog:
    """What a step leaves here, and how it gets from here into the context.

    Args:
        features: [T, F], where the target's taps are written.
        append: records how rows enter the context.
    """

    def __init__(self, arrays: BacklogArrays, features: Array, append: Append) -> None:
        self.arrays, self._features, self._append = arrays, features, append

    @property
    def depth(self) -> int:
        """Consecutive decode steps that may wait."""
        return self.arrays.features.shape[0] // (self.arrays.counts.shape[0] - 1)

    def record_kept(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Near the end of a decode step: its rows wait, and the drafts of its slots are emptied.

        Eight requests of SmolLM2 on an H200: 2.5 us in front of the last kernel, 3 behind it, 6 in one launch with it.
        """
        kept, tokens = self.arrays, key.num_tokens
        features = self._features[:tokens]
        launch.launch(
            keep_taps,
            (tokens, -(-features.shape[1] // KEEP_THREADS)),
            KEEP_THREADS,
            kept.features,
            kept.positions,
            kept.cells,
            state.draft_tokens,
            state.num_draft,
            features,
            step.positions[:tokens],
            step.token_slot[:tokens],
            step.slot_mapping[:tokens],
            self.depth,
            step.inputs.num_tokens,
        )

    def record_catch_up(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """What waits of the slots below key.num_requests enters the context, and waits no longer."""
        kept, rows = self.arrays, key.num_tokens
        live = kept.counts[key.num_requests : key.num_requests + 1]
        taken = ContextRows(kept.features[:rows], kept.positions[:rows], kept.slots[:rows], kept.cells[:rows], live)
        self._append(launch, key, state, step, taken)
        launch.fill(kept.cells[:rows], -1)
