"""Drafts for the next step, from device state alone: no download, no synchronisation. One recorder for each proposer."""

from __future__ import annotations

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Launcher
from kernels.ngram import ngram_propose

SEARCH_THREADS = 128


def record_ngram(launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, *, min_n: int, max_n: int) -> None:
    """Prompt lookup in the history of each row that has just committed tokens. Missing drafts are -1."""
    launch.launch(
        ngram_propose,
        key.num_requests,
        SEARCH_THREADS,
        state.draft_tokens,
        state.num_draft,
        state.history,
        state.total_len,
        state.finished,
        step.inputs.idx_mapping[: key.num_requests],
        step.num_sampled[: key.num_requests],
        min_n,
        max_n,
        step.inputs.num_requests,
    )
