"""Drafts for the next step, from device state alone: no download, no synchronisation. One class a proposer."""

from __future__ import annotations

from typing import Protocol

from graphs.arrays import SlotState, StepArrays
from graphs.draft_backlog import DraftBacklog
from graphs.key import GraphKey
from graphs.launch import Launcher
from kernels.ngram import ngram_propose

SEARCH_THREADS = 128


class Proposer(Protocol):
    """What drafts the next tokens. Its ids reach the target as candidates only: a wrong one costs acceptance, never text.

    Attributes:
        appends_context: whether it reads the token rows of the step in front of it: its graphs are then sized by them as well.
        backlog: where such rows can wait while nothing is drafted; None: each step moves the context on.
        works_beside: a part of each proposal is recorded beside the end of the step in front of it (`record_beside`).
    """

    @property
    def appends_context(self) -> bool: ...

    @property
    def backlog(self) -> DraftBacklog | None: ...

    @property
    def works_beside(self) -> bool: ...

    def record_beside(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Record what needs nothing that the end of the step of `key` computes, for `record` to find. Asked only where it
        `works_beside`."""
        ...

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Record draft_tokens and num_draft of the slots of key.num_requests rows that have just committed tokens."""
        ...

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Record the part of `record` that later proposals build on. Asked only of one that appends context."""
        ...


class NgramProposer:
    """Prompt lookup: what followed the earliest occurrence of the longest suffix that occurs before. Missing drafts are -1.

    Args:
        min_n, max_n: shortest and longest suffix that is looked up, in tokens; the longest match wins.
    """

    appends_context = False
    backlog = None
    works_beside = False

    def __init__(self, *, min_n: int, max_n: int) -> None:
        self.min_n = min_n
        self.max_n = max_n

    def record_beside(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Everything needs what the step emitted."""

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """The history is all of it, and the step has written that."""

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        rows = key.num_requests
        launch.launch(
            ngram_propose,
            rows,
            SEARCH_THREADS,
            state.draft_tokens,
            state.num_draft,
            state.history,
            state.total_len,
            state.finished,
            step.inputs.idx_mapping[:rows],
            step.num_sampled[:rows],
            self.min_n,
            self.max_n,
            step.inputs.num_requests,
        )
