"""One step of the target as ordered launches: inputs, forward, accept walk, advance, outcome.

Mixed, decode and verify steps are this one recorder at different frozen sizes (graphs/key.py): what a row is (a prefill chunk, a
decode row, a verify row) is read from device memory, so that no family can drift from another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.sampled_step import Sampler
from kernels.accept import accept_greedy
from kernels.accept_synthetic import SYNTHETIC_ONE, accept_synthetic
from kernels.begin_step import begin_step
from kernels.end_step import end_step
from kernels.lang import MAX_THREADS

ROW_THREADS = 32
BEGIN_THREADS = 128


class Target(Protocol):
    """The model whose output is never changed by speculation."""

    @property
    def row_argmax(self) -> Array:
        """int32 [J]: the greedy token of each logits row, once `record` has run."""
        ...

    def record(self, launch: Launcher, state: SlotState, step: StepArrays, num_tokens: int, num_logits: int) -> None:
        """Record input ids, positions and slots of `num_tokens` rows -> row_argmax of `num_logits` rows at most."""
        ...


def record_step(
    launch: Launcher,
    key: GraphKey,
    target: Target,
    state: SlotState,
    step: StepArrays,
    *,
    block_size: int,
    max_model_len: int,
    num_logits: int,
    sampler: Sampler | None = None,
    synthetic_acceptance: float | None = None,
    beside: Callable[[Launcher], None] | None = None,
    keep: Callable[[Launcher], None] | None = None,
) -> None:
    """Record a step of at most key.num_requests rows, key.num_tokens tokens and `num_logits` logits rows.

    sampler: draws the tokens of a step with key.sampled.
    synthetic_acceptance: accept this share of drafts by a hash, whatever the target says of them (timing); None = the real walk.
    beside: records what may run beside the end of the step, once the target has: a few small launches that wait for one another.
    keep: records what is kept of the step for later, in front of its last kernel.
    """
    _record_inputs(launch, key, state, step, block_size, max_model_len)
    target.record(launch, state, step.of_requests(key.num_requests, key.query_len), key.num_tokens, num_logits)
    if beside is None:
        _record_tokens(launch, key, target, state, step, num_logits, sampler, synthetic_acceptance, keep)
        return
    other = launch.fork()
    beside(other)
    _record_tokens(launch, key, target, state, step, num_logits, sampler, synthetic_acceptance, keep)
    launch.join(other)


def _record_tokens(
    launch: Launcher,
    key: GraphKey,
    target: Target,
    state: SlotState,
    step: StepArrays,
    num_logits: int,
    sampler: Sampler | None,
    synthetic_acceptance: float | None,
    keep: Callable[[Launcher], None] | None,
) -> None:
    """Logits -> the tokens that the step emits -> state and outcome."""
    if not key.sampled:
        record_walk(launch, key, target.row_argmax, step, synthetic_acceptance)
    else:
        assert sampler is not None, f"{key} needs a sampler"
        if sampler.has_distribution and synthetic_acceptance is None:
            sampler.record_verification(launch, key, state, step, num_logits)
        else:
            tokens = sampler.record_tokens(launch, key, state, step, num_logits)
            record_walk(launch, key, tokens, step, synthetic_acceptance)
    if keep is not None:
        keep(launch)
    _record_end(launch, key, state, step)
    if key.sampled and sampler is not None:
        sampler.record_end(launch, key, step)


def _record_inputs(
    launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays, block_size: int, max_model_len: int
) -> None:
    """Staged block -> positions, slots, input ids: prompt tokens from the history, then committed and draft ids over them."""
    inputs, rows = step.inputs, key.num_requests
    idx_mapping, query_start_loc = inputs.idx_mapping[:rows], inputs.query_start_loc[: rows + 1]
    cu_num_logits = inputs.cu_num_logits[: rows + 1]
    seq_lens, input_ids = step.seq_lens[:rows], step.input_token_ids[: key.num_tokens]
    threads = min(max(32 * rows, BEGIN_THREADS), MAX_THREADS)
    launch.launch(
        begin_step,
        1,
        threads,
        state.block_tables,
        step.positions[: key.num_tokens],
        seq_lens,
        step.token_slot[: key.num_tokens],
        step.slot_mapping[: key.num_tokens],
        input_ids,
        step.next_prefill,
        step.logits_indices,
        inputs.block_writes,
        inputs.num_block_writes,
        state.num_computed,
        idx_mapping,
        query_start_loc,
        cu_num_logits,
        state.history,
        state.prefill_len,
        state.last_sampled,
        state.draft_tokens,
        block_size,
        max_model_len,
        inputs.num_requests,
    )


def record_walk(
    launch: Launcher, key: GraphKey, tokens: Array, step: StepArrays, synthetic_acceptance: float | None
) -> None:
    """The target's token of each logits row, and the drafts -> accepted tokens."""
    inputs, rows = step.inputs, key.num_requests
    idx_mapping, cu_num_logits = inputs.idx_mapping[:rows], inputs.cu_num_logits[: rows + 1]
    results = (step.sampled[:rows], step.num_sampled[:rows], step.num_drafts[:rows])
    walk = (*results, tokens, step.input_token_ids, step.logits_indices, cu_num_logits)
    if synthetic_acceptance is None:
        launch.launch(accept_greedy, 1, ROW_THREADS, *walk, inputs.num_requests)
    else:
        threshold = round(synthetic_acceptance * SYNTHETIC_ONE)
        arguments = (*walk, idx_mapping, step.positions, threshold, inputs.num_requests)
        launch.launch(accept_synthetic, 1, ROW_THREADS, *arguments)


def _record_end(launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
    """Accepted tokens -> lengths, history and stops on the device -> the outcome the host will collect."""
    inputs, rows = step.inputs, key.num_requests
    idx_mapping, query_start_loc = inputs.idx_mapping[:rows], inputs.query_start_loc[: rows + 1]
    cu_num_logits, seq_lens = inputs.cu_num_logits[: rows + 1], step.seq_lens[:rows]
    sampled, num_sampled = step.sampled[:rows], step.num_sampled[:rows]
    num_rejected, num_drafts = step.num_rejected[:rows], step.num_drafts[:rows]
    launch.launch(
        end_step,
        1,
        ROW_THREADS,
        step.outcome,
        state.num_computed,
        state.total_len,
        state.last_sampled,
        state.history,
        state.finished,
        sampled,
        num_sampled,
        num_rejected,
        num_drafts,
        seq_lens,
        cu_num_logits,
        idx_mapping,
        query_start_loc,
        state.prefill_len,
        state.max_total_len,
        state.min_total_len,
        state.stop_ids,
        inputs.num_requests,
    )
