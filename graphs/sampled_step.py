"""The end of a step whose tokens are drawn: processing, one race for each row, verification. Greedy rows among them stay greedy."""

from __future__ import annotations

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.logits_processing import record_counting, record_processing
from graphs.sampling_state import RequestLists, SamplingScratch
from kernels.head import best_of_stripes
from kernels.random import QUARTER, TILE
from kernels.sample import race_stripes

TILES_PER_STRIPE = 8
"""Tiles of the vocabulary that one block goes over: more of them prune more, fewer of them fill a GPU at few rows."""

MERGE_THREADS = 32


def stripes_of(vocab_size: int) -> int:
    """S: stripes that a race over a vocabulary is cut into."""
    return -(-vocab_size // (TILE * TILES_PER_STRIPE))


class Sampler:
    """Records what stands between the target's logits and the accept walk.

    With proposers that are certain of their drafts (one-hot q) verification is: draw the target's own token at every row, accept
    while draft and token agree. A draft d is accepted with its probability p(d), and what stands in its place otherwise is drawn
    from p without d: the rule `p > u q` with q = 1, whose random numbers are those of the token at that position. The text is
    therefore the same with other drafts, or none.

    Args:
        logits: [J, V'], the target's, any storage type.
        scratch: arrays of the largest step.
        lists: what requests ask of single ids, by slot.
    """

    def __init__(self, logits: Array, scratch: SamplingScratch, lists: RequestLists) -> None:
        self._logits = logits
        self.scratch = scratch
        self.lists = lists

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, num_logits: int) -> Array:
        """Record logits -> the token of each logits row, int32 [J]."""
        scratch = self.scratch
        processed, stripes = scratch.processed[:num_logits], scratch.best_score.shape[0]
        record_processing(launch, state, step, self.lists, scratch, self._logits, key.num_requests, num_logits)
        launch.launch(
            race_stripes,
            (num_logits, stripes),
            QUARTER,
            scratch.best_score,
            scratch.best_column,
            processed,
            state.sampling.temperature,
            state.sampling.seed,
            step.token_slot,
            step.positions,
            step.logits_indices,
            TILES_PER_STRIPE,
            step.inputs.num_logits,
        )
        picks = scratch.picks[:num_logits]
        launch.launch(
            best_of_stripes,
            num_logits,
            MERGE_THREADS,
            picks,
            scratch.best_score,
            scratch.best_column,
            step.inputs.num_logits,
        )
        return picks

    def record_counting(self, launch: Launcher, key: GraphKey, step: StepArrays) -> None:
        """Record the counts of what the step kept, which the next step's penalties read."""
        record_counting(launch, step, self.lists, key.num_requests)
