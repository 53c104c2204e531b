"""The toy target and the scripted proposer as recorders: they stand in the graphs where a model and a drafter stand."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.propose import Proposer
from graphs.taps import TargetTaps
from kernels.toy import overrule_drafts, scripted_propose, toy_argmax, toy_residual, toy_store

ROW_THREADS = 32


@dataclass(frozen=True)
class ToyTaps:
    """Residual streams for a drafter to tap, one behind each of `num_blocks` blocks that the toy target pretends to have."""

    taps: TargetTaps
    residual: Array  # float32 [T, H]
    table: Array  # float32 [V, H]
    num_blocks: int

    def record(self, launch: Launcher, step: StepArrays, num_tokens: int) -> None:
        residual, live = self.residual[:num_tokens], step.inputs.num_tokens
        tokens, positions = step.input_token_ids[:num_tokens], step.positions[:num_tokens]
        for block in range(self.num_blocks):
            launch.launch(toy_residual, 1, ROW_THREADS, residual, self.table, tokens, positions, block, live)
            self.taps.record(launch, block, residual, live)


class ToyTarget:
    """Target of arithmetic, with a paged cache of token ids where a model has keys and values.

    Args:
        taps: what a drafter reads; None: nothing.
        cache: int32 [num_blocks * block_size].
        row_argmax: int32 [J].
        block_size: positions of a block.
        memory: whether the tokens in the cache count, or the last token alone.
    """

    def __init__(
        self, cache: Array, row_argmax: Array, *, block_size: int, memory: bool, taps: ToyTaps | None = None
    ) -> None:
        self._taps = taps
        self._cache, self._row_argmax = cache, row_argmax
        self._block_size, self._memory = block_size, int(memory)

    @property
    def row_argmax(self) -> Array:
        return self._row_argmax

    def record(self, launch: Launcher, state: SlotState, step: StepArrays, num_tokens: int, num_logits: int) -> None:
        input_ids = step.input_token_ids[:num_tokens]
        launch.launch(
            toy_store, 1, ROW_THREADS, self._cache, input_ids, step.slot_mapping[:num_tokens], step.inputs.num_tokens
        )
        if self._taps is not None:
            self._taps.record(launch, step, num_tokens)
        launch.launch(
            toy_argmax,
            1,
            ROW_THREADS,
            self._row_argmax[:num_logits],
            self._cache,
            state.block_tables,
            input_ids,
            step.positions[:num_tokens],
            step.token_slot[:num_tokens],
            step.logits_indices[:num_logits],
            self._block_size,
            self._memory,
            step.inputs.num_logits,
        )


class ScriptedProposer:
    """Drafts that are right, wrong or missing where a script says so.

    Args:
        script: int32 [N, P], values of kernels.toy (ACCEPT, REJECT, NO_DRAFT), by slot and position of the draft modulo P.
        memory: as of the target.
    """

    appends_context = False
    backlog = None
    works_beside = False

    def __init__(self, script: Array, *, memory: bool) -> None:
        self._script, self._memory = script, int(memory)

    def record_beside(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """Nothing."""

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """It has none."""

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        rows = key.num_requests
        launch.launch(
            scripted_propose,
            1,
            ROW_THREADS,
            state.draft_tokens,
            state.num_draft,
            state.history,
            state.total_len,
            state.finished,
            step.inputs.idx_mapping[:rows],
            step.num_sampled[:rows],
            self._script,
            self._memory,
            step.inputs.num_requests,
        )


class OverruledProposer:
    """A drafter whose drafts are the true tokens where a script says so: of random weights alone, hardly any would be accepted.

    Args:
        drafter: proposes; what it drafts stays where the script does not accept.
        script, memory: as of ScriptedProposer.
    """

    appends_context = True

    def __init__(self, drafter: Proposer, script: Array, *, memory: bool) -> None:
        self._drafter, self._script, self._memory = drafter, script, int(memory)
        self.backlog, self.works_beside = drafter.backlog, drafter.works_beside

    def record_beside(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        self._drafter.record_beside(launch, key, state, step)

    def record_context(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        self._drafter.record_context(launch, key, state, step)

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        self._drafter.record(launch, key, state, step)
        launch.launch(
            overrule_drafts,
            1,
            ROW_THREADS,
            state.draft_tokens,
            state.num_draft,
            state.history,
            state.total_len,
            step.inputs.idx_mapping[: key.num_requests],
            self._script,
            self._memory,
            step.inputs.num_requests,
        )
