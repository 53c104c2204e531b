"""Log probabilities of tokens, emitted ones and those of a prompt: graphs of their own behind a step, launched only when a request
of the step asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphs.arrays import ModelArrays, Scratch, SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from kernels.candidates import top_candidates
from kernels.head import gather_norm
from kernels.logprobs import publish_logprobs

THREADS = 256
RANKING_THREADS = 512


@dataclass(frozen=True)
class LogprobScratch:
    """Means nothing between steps. K = kernels.logprobs.MAX_LOGPROBS."""

    top_ids: Array  # int32 [J, K]
    top_values: Array  # float32 [J, K]


@dataclass(frozen=True)
class PromptRows:
    """Rows of the step in front whose next token is known, because it is in the prompt: staged by the host. C rows at most.

    For publish_logprobs each of them is a request that emitted one token.
    """

    live: Array  # int32 [1]
    token_rows: Array  # int32 [C] token row of the step
    targets: Array  # int32 [C, 1] the prompt's next token
    counts: Array  # int32 [C] 1
    wanted: Array  # int32 [C] most likely tokens asked for
    places: Array  # int32 [C] 0, 1, 2, ...
    starts: Array  # int32 [C + 1] 0, 1, 2, ...

    @classmethod
    def shapes(cls, rows: int) -> dict[str, tuple[int, ...]]:
        """Of the fields, by the names that their staged pack has."""
        own = {"live": (1,), "targets": (rows, 1), "starts": (rows + 1,)}
        return {f"prompt_{name}": own.get(name, (rows,)) for name in cls.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> PromptRows:
        """From the arrays of such a pack."""
        return cls(**{name: arrays[f"prompt_{name}"] for name in cls.__dataclass_fields__})


def record_best(launch: Launcher, scratch: LogprobScratch, logits: Array, vocab_size: int, live: Array) -> tuple[Array, Array]:
    """Record the ids and logits of the most likely tokens of each row."""
    rows = logits.shape[0]
    ids, values = scratch.top_ids[:rows], scratch.top_values[:rows]
    launch.launch(top_candidates, rows, RANKING_THREADS, ids, values, logits, vocab_size, live)
    return ids, values


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
        logits, vocab_size = self._logits[: rows * width], self._vocab_size
        ids, values = record_best(launch, self._scratch, logits, vocab_size, inputs.num_logits)
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


class PromptLogprobRecorder:
    """Computes logits of prompt rows from the residual stream that the step leaves, in the place of the step's own logits: to be
    launched when nobody needs these any more.

    Args:
        model: final norm and head of the target.
        scratch: the target's.
        logprobs: arrays of the largest step.
    """

    def __init__(self, model: ModelArrays, scratch: Scratch, logprobs: LogprobScratch) -> None:
        self._model, self._scratch, self._logprobs = model, scratch, logprobs

    @property
    def num_rows(self) -> int:
        """C: rows that one launch takes."""
        return self._scratch.logits.shape[0]

    def record(self, launch: Launcher, rows: PromptRows, outcome: Array) -> None:
        """Record residual, rows -> outcome int32 [1, C, 1, LOGPROB_FIELDS]."""
        scratch, shape = self._scratch, self._model.shape
        logits, hidden, count = scratch.logits, scratch.logit_rows, self.num_rows
        gain, eps = self._model.final_norm, shape.rms_norm_eps
        launch.launch(gather_norm, count, THREADS, hidden, scratch.residual, gain, rows.token_rows, eps, rows.live)
        launch.matmul(logits, hidden, self._model.head, rows.live)
        ids, values = record_best(launch, self._logprobs, logits, shape.vocab_size, rows.live)
        emitted = (rows.targets, rows.counts, rows.wanted, rows.places, rows.starts, rows.live)
        launch.launch(publish_logprobs, (count, 1), THREADS, outcome, logits, shape.vocab_size, ids, values, *emitted)
