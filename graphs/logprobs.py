"""Log probabilities of emitted tokens: a graph of its own behind a step, launched only when a request of the step asks for them."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from kernels.candidates import tile_maxima, top_candidates
from kernels.logprobs import publish_logprobs

THREADS = 256
TILES_PER_BLOCK = 8


@dataclass(frozen=True)
class LogprobScratch:
    """Means nothing between steps. K = kernels.logprobs.MAX_LOGPROBS."""

    tile_best: Array  # int32 [J, tiles] largest logit of each stretch of columns
    top_ids: Array  # int32 [J, K]
    top_values: Array  # float32 [J, K]


class LogprobRecorder:
    """Reads the target's raw logits, which the step leaves as they are, and what the step emitted.

    Args:
        logits: float32 [J, V' >= V], the target's.
        scratch: arrays of the largest step.
        vocab_size: V.
    """

    def __init__(self, logits: Array, scratch: LogprobScratch, vocab_size: int) -> None:
        self._logits, self._scratch, self._vocab_size = logits, scratch, vocab_size

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, outcome: Array) -> None:
        """Record logits, sampled, num_sampled -> outcome int32 [1, N, W, LOGPROB_FIELDS]."""
        inputs, rows, width = step.inputs, key.num_requests, step.sampled.shape[1]
        num_logits, vocab_size = rows * width, self._vocab_size
        logits, best = self._logits[:num_logits], self._scratch.tile_best[:num_logits]
        ids, values = self._scratch.top_ids[:num_logits], self._scratch.top_values[:num_logits]
        tiles = -(-best.shape[1] // TILES_PER_BLOCK)
        launch.launch(tile_maxima, (num_logits, tiles), THREADS, best, logits, vocab_size, inputs.num_logits)
        launch.launch(top_candidates, num_logits, THREADS, ids, values, logits, best, vocab_size, inputs.num_logits)
        launch.launch(
            publish_logprobs,
            (rows, width),
            THREADS,
            outcome,
            logits,
            vocab_size,
            ids,
            values,
            step.sampled[:rows],
            step.num_sampled[:rows],
            state.sampling.num_logprobs,
            inputs.idx_mapping[:rows],
            inputs.cu_num_logits[: rows + 1],
            inputs.num_requests,
        )
