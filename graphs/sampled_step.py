"""The end of a step whose tokens are drawn: processing, one race for each row, verification. Greedy rows among them stay greedy."""

from __future__ import annotations

from typing import Literal

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.logits_processing import record_counting, record_processing
from graphs.sampling_state import DraftDistribution, RequestLists, SamplingScratch, VerificationScratch
from kernels.random import TILE
from kernels.reject import BLOCK, STANDARD, accept_drafts
from kernels.reject_residual import emit_drawn, residual_stripes
from kernels.reject_rows import sum_rows, sum_stripes
from kernels.sample import pick_rows, race_stripes

Verification = Literal["standard", "block"]

FEWEST_TILES, MOST_TILES = 2, 8
"""Tiles of the vocabulary that one block goes over: a block costs as much as several tiles, but few blocks leave a GPU idle."""

SUM_TILES = 8
"""The same, of a sum: always as many, because a sum depends on them in its last bits, and a draft on the sum."""

RACE_BLOCKS, RESIDUAL_BLOCKS, SUM_BLOCKS = 600, 150, 1216
"""That many fill a GPU, once."""

ROW_THREADS = 32
RACE_THREADS = 256
SUM_THREADS = 256


def stripes_of(vocab_size: int, tiles: int = FEWEST_TILES) -> int:
    """Stripes of so many tiles that a vocabulary is cut into; the most there can be by default."""
    return -(-vocab_size // (TILE * tiles))


def tiles_for(rows: int, vocab_size: int, blocks: int) -> int:
    """Tiles of a stripe for a race of `rows` rows in about so many blocks. No result depends on it."""
    tiles = MOST_TILES
    while tiles > FEWEST_TILES and rows * stripes_of(vocab_size, tiles) < blocks:
        tiles //= 2
    return tiles


class Sampler:
    """Records what stands between the target's logits and the end of a step.

    Two ways to verify, by what is known of the drafts:

    one-hot q   the proposer is certain of its drafts (prompt lookup, DFlash): the target's own token is drawn at every row, and
                drafts are kept while they agree with it. A draft d is kept with probability p(d), and what stands in its place
                otherwise is drawn from p without d: the rule `p > u q` with q = 1 and its residual, and no rule keeps more. The
                random numbers are those of the tokens at their positions, so that the text is the same with other drafts, or none.
    sparse q    the drafter drew its drafts from a distribution over a few candidates (DFlash2): standard or block verification,
                with numbers of their own, and one more token from p or from the residual (kernels/reject.py).

    Args:
        logits: [J, V'], the target's, any storage type.
        scratch: arrays of the largest step.
        lists: what requests ask of single ids, by slot.
        distribution: q of the drafts; None: one-hot.
        verified: arrays that verification with a distribution needs; None without.
        verification: how drafts with a distribution are verified.
    """

    def __init__(
        self,
        logits: Array,
        scratch: SamplingScratch,
        lists: RequestLists,
        distribution: DraftDistribution | None = None,
        verified: VerificationScratch | None = None,
        verification: Verification = "standard",
    ) -> None:
        if (distribution is None) != (verified is None):
            raise ValueError("distribution and verified belong together: pass both, or neither")
        self._logits = logits
        self.scratch = scratch
        self.lists = lists
        self._distribution, self._verified = distribution, verified
        self._verification = BLOCK if verification == "block" else STANDARD
        self._vocab_size = scratch.processed.shape[1]

    @property
    def has_distribution(self) -> bool:
        """Whether `record_verification` is the way to verify, not the walk over `record_tokens`."""
        return self._distribution is not None

    def record_tokens(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, num_logits: int) -> Array:
        """Record logits -> the target's own token of each logits row, int32 [J]."""
        scratch, live = self.scratch, step.inputs.num_logits
        self._record_processing(launch, key, state, step, num_logits)
        tiles = tiles_for(num_logits, self._vocab_size, RACE_BLOCKS)
        stripes = stripes_of(self._vocab_size, tiles)
        best = scratch.best_score[:stripes], scratch.best_column[:stripes]
        launch.launch(
            race_stripes,
            (num_logits, stripes),
            RACE_THREADS,
            *best,
            scratch.processed[:num_logits],
            scratch.filters.threshold,
            state.sampling.temperature,
            state.sampling.seed,
            step.token_slot,
            step.positions,
            step.logits_indices,
            tiles,
            live,
        )
        picks = scratch.picks[:num_logits]
        launch.launch(pick_rows, num_logits, ROW_THREADS, picks, *best, live)
        return picks

    def record_verification(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, num_logits: int) -> None:
        """Record logits, drafts and their distribution -> step.sampled, num_sampled, num_drafts."""
        assert self._distribution is not None
        assert self._verified is not None
        scratch, verified, drafts, rows = self.scratch, self._verified, self._distribution, key.num_requests
        sampling, inputs = state.sampling, step.inputs
        processed, threshold, indices = scratch.processed[:num_logits], scratch.filters.threshold, step.logits_indices
        idx_mapping, cu_num_logits = inputs.idx_mapping[:rows], inputs.cu_num_logits[: rows + 1]
        self._record_processing(launch, key, state, step, num_logits)
        stripes, width = stripes_of(self._vocab_size, SUM_TILES), TILE * SUM_TILES
        sums = (verified.stripe_max, verified.stripe_sum, verified.stripe_column)
        grid = num_logits, min(stripes, max(1, SUM_BLOCKS // num_logits))
        launch.launch(sum_stripes, grid, SUM_THREADS, *sums, processed, threshold, width, inputs.num_logits)
        of_rows = (verified.log_sum, scratch.picks, verified.uniforms)
        where = (sampling.seed, step.token_slot, step.positions, indices, scratch.local_position, inputs.num_logits)
        launch.launch(sum_rows, num_logits, ROW_THREADS, *of_rows, *sums, *where)
        launch.launch(
            accept_drafts,
            rows,
            ROW_THREADS,
            verified.num_accepted,
            verified.scale,
            verified.residual,
            step.num_drafts[:rows],
            processed,
            threshold,
            verified.log_sum,
            scratch.picks,
            verified.uniforms,
            step.input_token_ids,
            indices,
            cu_num_logits,
            drafts.ids,
            drafts.probs,
            sampling.temperature,
            idx_mapping,
            self._verification,
            inputs.num_requests,
        )
        tiles = tiles_for(rows, self._vocab_size, RESIDUAL_BLOCKS)
        stripes = stripes_of(self._vocab_size, tiles)
        best = scratch.best_score[:stripes], scratch.best_column[:stripes]
        launch.launch(
            residual_stripes,
            (rows, stripes),
            RACE_THREADS,
            *best,
            processed,
            threshold,
            verified.log_sum,
            verified.num_accepted,
            verified.scale,
            verified.residual,
            drafts.ids,
            drafts.probs,
            sampling.temperature,
            sampling.seed,
            step.positions,
            indices,
            cu_num_logits,
            idx_mapping,
            tiles,
            inputs.num_requests,
        )
        launch.launch(
            emit_drawn,
            rows,
            ROW_THREADS,
            step.sampled[:rows],
            step.num_sampled[:rows],
            verified.num_accepted,
            *best,
            scratch.picks,
            step.input_token_ids,
            indices,
            cu_num_logits,
            state.history,
            state.total_len,
            idx_mapping,
            inputs.num_requests,
        )

    def record_end(self, launch: Launcher, key: GraphKey, step: StepArrays) -> None:
        """Record what follows the outcome: counts for the next step's penalties."""
        record_counting(launch, step, self.lists, key.num_requests)

    def _record_processing(
        self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, num_logits: int
    ) -> None:
        record_processing(launch, state, step, self.lists, self.scratch, self._logits, key.num_requests, num_logits)
