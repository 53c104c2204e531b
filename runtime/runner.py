"""The runner: a plan becomes staged inputs, two graph launches and a copy in flight. It never waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphs.key import Buckets, Family, GraphKey
from graphs.launch import Launcher
from graphs.library import GraphLibrary
from graphs.logprobs import LogprobRecorder, PromptLogprobRecorder
from graphs.propose import Proposer
from graphs.sampled_step import Sampler
from graphs.sampling_state import RequestLists
from graphs.step import Target, record_step
from graphs.tape import TapedLauncher, Tapes
from kernels.clear_drafts import clear_drafts
from kernels.combine import check_arguments
from kernels.penalties import begin_counts
from kernels.publish import OUTCOME_FIELDS
from kernels.request_lists import admit_lists
from kernels.sampling_slots import admit_sampling
from kernels.slots import RECORD_FIELDS, admit
from runtime.device import Device, Stream
from runtime.errors import ConfigError
from runtime.logprob_ring import LogprobRing, PendingLogprobs
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_table import MirrorTable
from runtime.path_counters import PathCounters
from runtime.phase_clock import NO_PHASES, NoPhases, Phase
from runtime.plan import Admission, StepPlan, StepResult
from runtime.prompt_logprobs import PendingPromptLogprobs, PromptLogprobs
from runtime.request_lists import has_lists, staged_lists, staged_shapes
from runtime.sampling_record import sampled_reason, sampling_record
from runtime.staging import OutcomeRing
from runtime.step_buffers import StepBuffers, StepSizes

logger = logging.getLogger(__name__)

ADMIT_THREADS = 128
COUNT_THREADS = 1024
CaptureProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class RunnerOptions:
    """How a runner stages and launches.

    Attributes:
        steps_in_flight: steps queued and not collected, the one being prepared included.
        graph_mode: "graph" replays captured graphs, "eager" runs the recorders at every step.
        buckets, token_buckets: rows of uniform steps, tokens of mixed steps; None = powers of two.
        eos_token_ids: end a request unless its parameters say otherwise.
        poison: fill host copies that the device overtakes.
        dot_folder: receives each graph as a Graphviz file.
        draft_lengths: every number of drafts that a step may verify; None = always num_speculative_tokens.
        synthetic_acceptance: share of drafts that a hash accepts instead of the target, for timing.
    """

    steps_in_flight: int
    graph_mode: Literal["graph", "eager"] = "graph"
    buckets: Sequence[int] | None = None
    token_buckets: Sequence[int] | None = None
    eos_token_ids: tuple[int, ...] = ()
    poison: bool = False
    dot_folder: Path | None = None
    synthetic_acceptance: float | None = None
    draft_lengths: tuple[int, ...] | None = None


class StepOutcome:
    """One step in flight. Its results cannot be had without waiting for its event, and only once."""

    def __init__(
        self,
        plan: StepPlan,
        ring: OutcomeRing,
        paths: PathCounters,
        logprobs: PendingLogprobs | None,
        prompt_logprobs: PendingPromptLogprobs | None,
    ) -> None:
        self.plan = plan
        self._ring = ring
        self._paths = paths
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs

    def collect(self) -> StepResult:
        """Block the host until this step's outcome has arrived: the one wait of a steady step (and one more for log probabilities,
        which leave the device right behind it)."""
        rows = self._ring.collect(self.plan.step)[: len(self.plan.rows)].tolist()
        degenerate = sum(row[3] for row in rows)
        if degenerate:
            self._paths.degenerate_tokens += degenerate
            logger.warning("step %d: %d tokens stand for logits that are all NaN or masked", self.plan.step, degenerate)
        kept = [row[OUTCOME_FIELDS : OUTCOME_FIELDS + row[0]] for row in rows]
        return StepResult(
            sampled=[row[OUTCOME_FIELDS:] for row in rows],
            num_sampled=[row[0] for row in rows],
            num_drafts=[row[1] for row in rows],
            finished=[row[2] for row in rows],
            logprobs={} if self._logprobs is None else self._logprobs.collect(kept),
            prompt_logprobs={} if self._prompt_logprobs is None else self._prompt_logprobs.collect(),
        )


class Runner:
    """Owner of the compute and copy streams, the mirror table and the graphs of one engine.

    Args:
        target: records the model.
        proposer: records the drafts of the next step; None without speculation.
        tapes: where graphs note which ids they drafted, fed and compared, for a gate; None costs nothing.
        sampler: draws tokens for requests that want more than the argmax of the raw logits; None for a target that has no logits.
        logprobs: log probabilities of emitted tokens, and of prompts; None for a target that has no logits.

    Attributes:
        paths: which way the steps went.
    """

    def __init__(
        self,
        device: Device,
        target: Target,
        proposer: Proposer | None,
        sizes: StepSizes,
        policy: MirrorPolicy,
        options: RunnerOptions,
        tapes: Tapes | None = None,
        sampler: Sampler | None = None,
        logprobs: tuple[LogprobRecorder, PromptLogprobRecorder] | None = None,
    ) -> None:
        self.device, self.sizes, self.options = device, sizes, options
        self._target, self._proposer, self._tapes, self._sampler = target, proposer, tapes, sampler
        self._sampled_reasons: list[str | None] = [None] * sizes.max_num_seqs
        self.paths = PathCounters()
        self._phases: NoPhases = NO_PHASES
        self.compute: Stream = device.stream("compute")
        self.copy: Stream = device.stream("copy")
        self.table = MirrorTable(
            device, policy, self.compute, steps_in_flight=options.steps_in_flight, poison=options.poison
        )
        self.buffers = StepBuffers(self.table, sizes)
        if sampler is not None:
            depth = sizes.max_num_seqs * (options.steps_in_flight + 1)
            self.table.pack("request_lists", staged_shapes(sampler.lists.counts.shape[1]), depth=depth)
        self._logprobs = None if logprobs is None else LogprobRing(self.table, sizes, logprobs[0])
        self._prompt_logprobs = None if logprobs is None else PromptLogprobs(self.table, sizes, logprobs[1])
        self.buffers.initialise(self.compute)
        self._state, self._step = self.buffers.state, self.buffers.step
        slots, stride = self._state.draft_tokens.shape
        self._draft_shape = (slots, stride)
        self.buckets = _with_largest(options.buckets, sizes.max_num_seqs, smallest=1)
        self.token_buckets = _with_largest(options.token_buckets, sizes.max_num_batched_tokens, smallest=16)
        recorders = {family: self._record_step for family in (Family.MIXED, Family.DECODE, Family.VERIFY)}
        self.library = GraphLibrary(
            self.compute,
            {
                **recorders,
                Family.LOGPROBS: self._record_logprobs,
                Family.PROMPT_LOGPROBS: self._record_prompt_logprobs,
                Family.PROPOSE: self._record_propose,
                Family.CONTEXT: self._record_context,
            },
            options.graph_mode,
            self.table.before_launch,
            self.table.after_launch,
        )
        self._admissions = self._list_admissions = 0
        self._closed = False

    # ---- graphs ------------------------------------------------------------------------------------------------

    @property
    def query_len(self) -> int:
        """Most tokens of a decode row: its committed token and the drafts to verify."""
        return 1 + self.sizes.num_speculative_tokens

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        """Drafts that the decode rows of a step may have; the same number for all of them."""
        return self.options.draft_lengths or (self.sizes.num_speculative_tokens,)

    def keys(self) -> list[GraphKey]:
        """Every graph that a plan can ask for."""
        slots = self.sizes.max_num_seqs
        steps = [GraphKey.mixed(slots, tokens) for tokens in self.token_buckets.sizes]
        steps += [GraphKey.uniform(rows, 1 + k) for k in self.draft_lengths for rows in self.buckets.sizes]
        if self._sampler is not None:
            steps += [replace(key, sampled=True) for key in steps]
        logprobs = [] if self._logprobs is None else [GraphKey.logprobs(rows) for rows in self.buckets.sizes]
        if self._prompt_logprobs is not None:
            logprobs.append(self._prompt_logprobs.key)
        if self._proposer is None:
            return [*steps, *logprobs]
        # Keys that propose alike are one graph: a verify step of eight rows and a mixed one of as many tokens, say.
        proposes = (True, False) if 0 in self.draft_lengths else (True,)
        drafting = {self._propose_key(step, rows, more): None for step in steps for rows in self.buckets.sizes for more in proposes}
        return [*steps, *logprobs, *drafting]

    def capture(self, progress: CaptureProgress | None = None, *, on_demand: bool = True) -> None:
        """Compile what the graphs launch, capture them largest first, and pin what they touch.

        on_demand: also the graphs that only requests need which ask for more than plain greedy decoding; False leaves them to the
            first such request, and spares all others the time that it takes to compile them.
        """
        self._capture([key for key in self.keys() if on_demand or not key.on_demand], progress)
        if self.options.dot_folder is not None:
            self._draw(self.options.dot_folder)
        if progress is not None:
            progress(len(self.library.graphs), len(self.library.graphs))

    def _capture(self, keys: Sequence[GraphKey], progress: CaptureProgress | None = None) -> None:
        known = set(self.library.graphs)
        self.library.capture(keys, progress)
        for key in self.library.graphs.keys() - known:
            self.table.adopt(self.library.graphs[key])

    def _capture_late(self, wanted: GraphKey) -> None:
        """All graphs of the kind of `wanted`, at the first request that needs one."""
        assert wanted.on_demand, f"{wanted} was never captured"
        keys = [key for key in self.keys() if key.on_demand and key.sampled == wanted.sampled]
        logger.info("capturing %d graphs like %s: the first request that needs them is here", len(keys), wanted)
        self._capture(keys)
        self.paths.late_captures += len(keys)

    def _draw(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for key, trace in self.library.traces.items():
                name = f"{key.family.value}-{key.num_requests}-{key.num_tokens}.dot"
                (folder / name).write_text(trace.dot(str(key)), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"graphs.dot = {folder}: cannot be written: {error.strerror}; name a folder that can") from error
        logger.info("wrote %d graphs to %s", len(self.library.traces), folder)

    def _record_step(self, launch: Launcher, key: GraphKey) -> None:
        sizes = self.sizes
        rows = key.num_requests
        record_step(
            self._instrumented(launch, key),
            key,
            self._target,
            self._state,
            self._step,
            block_size=sizes.block_size,
            max_model_len=sizes.max_model_len,
            num_logits=rows * (key.query_len or self.query_len),
            sampler=self._sampler,
            synthetic_acceptance=self.options.synthetic_acceptance,
        )

    def _instrumented(self, launch: Launcher, key: GraphKey) -> Launcher:
        """Where the launches of a step go: straight on, or past the tapes first."""
        return launch if self._tapes is None else TapedLauncher(launch, self._tapes, key, self._step)

    def _record_logprobs(self, launch: Launcher, key: GraphKey) -> None:
        assert self._logprobs is not None
        self._logprobs.record(launch, key, self.buffers)

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
        launch.launch(clear_drafts, 1, ADMIT_THREADS, *arrays)
        if self._tapes is not None:
            self._tapes.record_drafts(launch, key, self._state, self._step)

    # ---- a step ------------------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> StepOutcome:
        """Queue a whole step: admissions, inputs, target, outcome on its way, drafts for the next step."""
        self._phases.mark(Phase.STAGE)
        for admission in plan.admissions:
            self._admit(admission)
        self._stage(plan)
        self._phases.mark(Phase.LAUNCH)
        key = self._variant(plan, self._key(plan))
        self._run(key)
        self.paths.launched(key, len(plan.rows))
        self.buffers.outcomes.submit(plan.step, self.compute, self.copy)
        logprobs, of_prompts = self._launch_logprobs(plan), None
        if self._prompt_logprobs is not None:
            of_prompts = self._prompt_logprobs.launch(plan.rows, self._run, self.compute, self.copy)
        if self._proposer is not None:
            # In every arm: the step that ends a prefill already drafts for the first decode step.
            self._run(self._propose_key(key, self._bucket(len(plan.rows)), plan.proposes))
            self.paths.proposals += 1
        return StepOutcome(plan, self.buffers.outcomes, self.paths, logprobs, of_prompts)

    def _launch_logprobs(self, plan: StepPlan) -> PendingLogprobs | None:
        """In front of the propose graph, while the step's logits are still there."""
        wanted = None if self._logprobs is None else self._logprobs.wanted(plan.rows)
        if self._logprobs is None or wanted is None:
            return None
        self._run(GraphKey.logprobs(self._bucket(len(plan.rows))))
        return self._logprobs.submit(wanted, self.compute, self.copy)

    def trace_phases(self, phases: NoPhases) -> None:
        """Let `phases` hear where staging and launching begin; NO_PHASES ends it."""
        self._phases = phases

    def _run(self, key: GraphKey) -> None:
        if key not in self.library.graphs:
            self._capture_late(key)
        self.library.launch(key)
        if self.library.mode == "eager":
            self.paths.fall_outs["graphs.mode = eager"] += 1

    def _key(self, plan: StepPlan) -> GraphKey:
        """The graph of a step: by the state of its rows (plan.query_len), never by their shape."""
        if plan.query_len is not None:
            return GraphKey.uniform(self._bucket(len(plan.rows)), plan.query_len)
        tokens = self.token_buckets.up(plan.num_tokens)
        assert tokens is not None, f"plan of {plan.num_tokens} tokens exceeds the largest bucket {self.token_buckets.sizes}"
        return GraphKey.mixed(self.sizes.max_num_seqs, tokens)

    def _variant(self, plan: StepPlan, key: GraphKey) -> GraphKey:
        """The sampled graph when a request of the step asks for more than the argmax of the raw logits."""
        reasons = {self._sampled_reasons[row.slot] for row in plan.rows} - {None}
        if not reasons:
            return key
        self.paths.sampled_steps.update(reason for reason in reasons if reason is not None)
        return replace(key, sampled=True)

    def _propose_key(self, step: GraphKey, rows: int, proposes: bool) -> GraphKey:
        """The graph behind that of a step of at most `rows` rows. Where no drafts are wanted (`proposes` is False) a drafter that
        keeps a context only moves that on; one that keeps none drafts all the same, which costs less than another graph."""
        assert self._proposer is not None
        if not self._proposer.appends_context:
            return GraphKey.propose(rows)
        if proposes:
            return GraphKey.propose(step.num_requests, step.num_tokens)
        return GraphKey.context(step.num_requests, step.num_tokens)

    def _bucket(self, rows: int) -> int:
        bucket = self.buckets.up(rows)
        assert bucket is not None, f"{rows} rows exceed the largest bucket {self.buckets.sizes}"
        return bucket

    def _admit(self, admission: Admission) -> None:
        """Write every per-slot field of the slot, whatever it held: prompt, limits, empty drafts."""
        table, slot = self.table, admission.slot
        stop_ids = self._stop_ids(admission)
        min_total_len = admission.prompt_len + admission.params.min_tokens
        prefill_len = len(admission.prefill_tokens)
        host_fields: dict[str, int | npt.NDArray[np.int32]] = {
            "prefill_len": prefill_len,
            "max_total_len": admission.max_total_len,
            "min_total_len": min_total_len,
            "stop_ids": stop_ids,
        }
        for name, value in host_fields.items():
            table[name].write_host(value, slot)
            table[name].carry()
        record = np.full(RECORD_FIELDS, -1, np.int32)
        record[:6] = slot, prefill_len, 0, admission.max_total_len, min_total_len, admission.prompt_len
        pack = self.buffers.admission
        pack["record"].write_host(np.concatenate((record, stop_ids)))
        pack["sampling_record"].write_host(sampling_record(admission.params))
        # A target without logits has nothing to process: its tokens are its own, and min_tokens then ignores stops.
        self._sampled_reasons[slot] = None if self._sampler is None else sampled_reason(admission.params)
        if self._logprobs is not None:
            self._logprobs.admit(slot, admission.params)
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.admit(admission)
        pack["tokens"].write_host(np.array(admission.prefill_tokens, np.int32), slice(0, prefill_len))
        pack.upload(self._admissions, self.compute, prefill_len)
        self._admissions += 1
        self.paths.admissions += 1
        state = self._state
        written = (*self.buffers.ADMITTED_DEVICE, *self.buffers.ADMITTED_HOST)
        with table.eager(f"admit {admission.request_id}", reads=("admission",), writes=written):
            self.compute.launch(
                admit,
                1,
                ADMIT_THREADS,
                state.num_computed,
                state.total_len,
                state.last_sampled,
                state.draft_tokens,
                state.num_draft,
                state.finished,
                state.prefill_len,
                state.max_total_len,
                state.min_total_len,
                state.stop_ids,
                state.history,
                pack["record"].device_array,
                pack["tokens"].device_array,
            )
        sampling = state.sampling
        with table.eager(f"admit {admission.request_id}", reads=("admission",), writes=self.buffers.ADMITTED_SAMPLING):
            self.compute.launch(
                admit_sampling,
                1,
                ADMIT_THREADS,
                *(getattr(sampling, name) for name in admit_sampling.params if name in self.buffers.ADMITTED_SAMPLING),
                pack["record"].device_array,
                pack["sampling_record"].device_array,
            )
        if self._sampler is not None:
            self._admit_lists(admission, self._sampler.lists)

    def _admit_lists(self, admission: Admission, lists: RequestLists) -> None:
        """Write what the slot's request asks of single ids, and the counts that its penalties begin with."""
        params, pack = admission.params, self.buffers.admission
        record, tokens = pack["record"].device_array, pack["tokens"].device_array
        if has_lists(params):
            staged = self.table.packs["request_lists"]
            for name, values in staged_lists(params, lists.counts.shape[1]).items():
                staged[name].write_host(values)
            staged.upload(self._list_admissions, self.compute)
            self._list_admissions += 1
            with self.table.eager(f"admit {admission.request_id}", reads=("admission", "request_lists")):
                rows = lists.bias_ids, lists.bias_values, lists.bad_starts, lists.bad_tokens, lists.allowed
                fields = (staged[name].device_array for name in admit_lists.params if name in staged.fields)
                self.compute.launch(admit_lists, 1, ADMIT_THREADS, *rows, record, *fields)
        if params.has_penalties:
            with self.table.eager(f"admit {admission.request_id}", reads=("admission",)):
                self.compute.launch(begin_counts, 1, COUNT_THREADS, lists.counts, record, tokens)

    def _stop_ids(self, admission: Admission) -> npt.NDArray[np.int32]:
        """int32 [S]: the request's own stop ids, then the model's end-of-text ids unless they are ignored; -1 behind them."""
        params = admission.params
        ids = dict.fromkeys((*params.stop_token_ids, *(() if params.ignore_eos else self.options.eos_token_ids)))
        stop_ids = np.full(self.sizes.num_stop_ids, -1, np.int32)
        stop_ids[: len(ids)] = list(ids)
        return stop_ids

    def _stage(self, plan: StepPlan) -> None:
        """Write the step's inputs over their whole length, pads included, and queue their one copy."""
        inputs, sizes = self.buffers.inputs, self.sizes
        num_rows = len(plan.rows)
        slots = [row.slot for row in plan.rows]
        query_starts = list(accumulate((row.num_tokens for row in plan.rows), initial=0))
        logits_starts = list(accumulate((1 + row.num_drafts for row in plan.rows), initial=0))
        # Whatever the kernel has no lengths to refuse is refused here, in every arm.
        check_arguments(
            cu_num_logits=logits_starts,
            query_start_loc=query_starts,
            idx_mapping=slots,
            draft_shape=self._draft_shape,
            num_slots=sizes.max_num_seqs,
            bonus=1,
        )
        writes = self._block_table_diffs(plan)
        idx_mapping = np.full(sizes.max_num_seqs, -1, np.int32)
        idx_mapping[:num_rows] = slots
        query_start_loc = _padded(query_starts, sizes.max_num_seqs + 1)
        cu_num_logits = _padded(logits_starts, sizes.max_num_seqs + 1)
        inputs["live"].write_host(np.array([query_start_loc[-1], num_rows, cu_num_logits[-1]], np.int32))
        inputs["idx_mapping"].write_host(idx_mapping)
        inputs["query_start_loc"].write_host(query_start_loc)
        inputs["cu_num_logits"].write_host(cu_num_logits)
        inputs["num_block_writes"].write_host(np.array([len(writes)], np.int32))
        if len(writes):
            inputs["block_writes"].write_host(writes, slice(0, len(writes)))
        # A step changes few cells of the block tables; room for all of them is most of the block.
        inputs.upload(plan.step, self.compute, len(writes))

    def _block_table_diffs(self, plan: StepPlan) -> npt.NDArray[np.int32]:
        """int32 [n, 3] (slot, column, block): what changes in the block tables, each cell once.

        A slot that changes hands is emptied first: a row that ran past its new owner's blocks then writes nowhere, instead of into
        a block that belongs to another request by now.
        """
        block_tables = self.table["block_tables"]
        cells: dict[tuple[int, int], int] = {}
        for admission in plan.admissions:
            for column in np.flatnonzero(block_tables.read_host()[admission.slot] >= 0).tolist():
                cells[admission.slot, column] = -1
        for write in plan.block_writes:
            cells[write.slot, write.column] = write.block
        for (slot, column), block in cells.items():
            block_tables.write_host(block, (slot, column))
        return block_tables.take_diffs(self.sizes.block_writes)

    # ---- life --------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Policy, graphs, memory and counters."""
        return {
            "mirror_policy": str(self.table.policy),
            "graphs": {
                "mode": self.library.mode,
                "captured": [f"{key}: {graph.num_nodes} nodes" for key, graph in sorted(self.library.graphs.items())],
                "capture_s": round(self.library.capture_seconds, 3),
            },
            "paths": self.paths.as_dict(),
            "memory_bytes": self.device.allocated_bytes(),
        }

    def close(self) -> None:
        """Wait for the device and free everything; a device that has failed is not waited for. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.library.close()
            if not self.device.failed:
                self.table.close()
        finally:
            self.device.close()
            # Whoever still holds the closed engine does not hold the weights with it.
            del self._target, self._proposer, self._state, self._step, self.buffers


def _padded(starts: Sequence[int], length: int) -> npt.NDArray[np.int32]:
    """int32 [length]: prefix sums; behind the last row their total, so that a pad row is empty."""
    padded = np.full(length, starts[-1], np.int32)
    padded[: len(starts)] = starts
    return padded


def _with_largest(sizes: Sequence[int] | None, largest: int, *, smallest: int) -> Buckets:
    """The sizes asked for that can occur, and the largest that must be there; powers of two by default."""
    if sizes is None:
        return Buckets.powers(largest, smallest=min(smallest, largest))
    return Buckets([*(size for size in sizes if size < largest), largest])
