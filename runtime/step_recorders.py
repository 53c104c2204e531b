"""StepRecorders: what each family of graphs launches, bound to the arrays of one engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphs.arrays import SlotState, StepArrays
from graphs.key import Family, GraphKey
from graphs.launch import Launcher
from graphs.library import Recorder
from graphs.propose import Proposer
from graphs.sampled_step import Sampler
from graphs.step import Target, record_step
from graphs.tape import Tapes
from kernels.clear_drafts import clear_drafts
from runtime.logprob_ring import LogprobRing
from runtime.prompt_logprobs import PromptLogprobs
from runtime.step_buffers import StepBuffers

CLEAR_THREADS = 128


class StepRecorders:
    """Records steps, proposals and log probabilities; allocates nothing.

    Args:
        instrumented: where the launches of a step go: straight on, or past what a gate listens with.
        query_len: most tokens of a decode row.
        synthetic_acceptance: share of drafts that a hash accepts instead of the target, for timing.
    """

    def __init__(
        self,
        buffers: StepBuffers,
        target: Target,
        proposer: Proposer | None,
        tapes: Tapes | None,
        sampler: Sampler | None,
        logprobs: LogprobRing | None,
        prompt_logprobs: PromptLogprobs | None,
        *,
        instrumented: Callable[[Launcher, GraphKey], Launcher],
        query_len: int,
        synthetic_acceptance: float | None,
    ) -> None:
        self._buffers, self._state, self._step = buffers, buffers.state, buffers.step
        self._target, self._proposer, self._tapes, self._sampler = target, proposer, tapes, sampler
        self._logprobs, self._prompt_logprobs = logprobs, prompt_logprobs
        self._instrumented, self._query_len, self._synthetic_acceptance = instrumented, query_len, synthetic_acceptance

    def by_family(self) -> dict[Family, Recorder]:
        return {
            **dict.fromkeys((Family.MIXED, Family.DECODE, Family.VERIFY), self._record_step),
            Family.LOGPROBS: self._record_logprobs,
            Family.PROMPT_LOGPROBS: self._record_prompt_logprobs,
            Family.PROPOSE: self._record_propose,
            Family.CONTEXT: self._record_context,
            Family.CATCH_UP: self._record_catch_up,
        }

    def _record_step(self, launch: Launcher, key: GraphKey) -> None:
        sizes, proposer = self._buffers.sizes, self._proposer
        rows, beside, keep = key.num_requests, None, None
        if proposer is not None and proposer.works_beside:
            beside = partial(_record_beside, proposer, key, self._state, self._step)
        if key.defers:
            assert proposer is not None
            assert proposer.backlog is not None
            keep = partial(proposer.backlog.record_kept, key=key, state=self._state, step=self._step)
        record_step(
            self._instrumented(launch, key),
            key,
            self._target,
            self._state,
            self._step,
            block_size=sizes.block_size,
            max_model_len=sizes.max_model_len,
            num_logits=rows * (key.query_len or self._query_len),
            sampler=self._sampler,
            synthetic_acceptance=self._synthetic_acceptance,
            beside=beside,
            keep=keep,
        )
        if key.defers and self._tapes is not None:
            self._tapes.record_drafts(launch, key, self._state, self._step)

    def _record_logprobs(self, launch: Launcher, key: GraphKey) -> None:
        assert self._logprobs is not None
        self._logprobs.record(launch, key, self._buffers)

    def _record_prompt_logprobs(self, launch: Launcher, key: GraphKey) -> None:
        assert self._prompt_logprobs is not None
        self._prompt_logprobs.record(launch)

    def _record_propose(self, launch: Launcher, key: GraphKey) -> None:
        assert self._proposer is not None
        self._proposer.record(launch, key, self._state, self._step)
        if self._tapes is not None:
            self._tapes.record_drafts(launch, key, self._state, self._step)

    def _record_context(self, launch: Launcher, key: GraphKey) -> None:
        """The drafts that the slots held are of a position that will be past: they are emptied."""
        assert self._proposer is not None
        self._proposer.record_context(launch, key, self._state, self._step)
        rows, state, inputs = key.num_requests, self._state, self._step.inputs
        arrays = (state.draft_tokens, state.num_draft, inputs.idx_mapping[:rows], inputs.num_requests)
        launch.launch(clear_drafts, 1, CLEAR_THREADS, *arrays)
        if self._tapes is not None:
            self._tapes.record_drafts(launch, key, self._state, self._step)

    def _record_catch_up(self, launch: Launcher, key: GraphKey) -> None:
        assert self._proposer is not None
        assert self._proposer.backlog is not None
        self._proposer.backlog.record_catch_up(launch, key, self._state, self._step)


def _record_beside(proposer: Proposer, key: GraphKey, state: SlotState, step: StepArrays, launch: Launcher) -> None:
    proposer.record_beside(launch, key, state, step)
