"""The runner: a plan becomes staged inputs, two graph launches and a copy in flight. It never waits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphs.key import Buckets, Family, GraphKey
from graphs.launch import Launcher
from graphs.library import GraphLibrary, StepGraph
from graphs.logprobs import LogprobRecorder, PromptLogprobRecorder
from graphs.propose import Proposer
from graphs.sampled_step import Sampler
from graphs.step import Target
from graphs.tape import TapedLauncher, Tapes
from runtime.admissions import Admissions
from runtime.context_backlog import ContextBacklog
from runtime.device import Device, Stream
from runtime.errors import ConfigError
from runtime.logprob_ring import LogprobRing, PendingLogprobs
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_table import MirrorTable
from runtime.path_counters import PathCounters
from runtime.phase_clock import NO_PHASES, NoPhases, Phase
from runtime.plan import StepPlan
from runtime.prompt_logprobs import PromptLogprobs
from runtime.runner_options import RunnerOptions
from runtime.step_buffers import StepBuffers, StepSizes
from runtime.step_outcome import StepOutcome
from runtime.step_recorders import StepRecorders
from runtime.step_staging import StepStaging

logger = logging.getLogger(__name__)

CaptureProgress = Callable[[int, int], None]


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
        self.paths = PathCounters()
        self._phases: NoPhases = NO_PHASES
        self.compute: Stream = device.stream("compute")
        self.copy: Stream = device.stream("copy")
        self.table = MirrorTable(
            device, policy, self.compute, steps_in_flight=options.steps_in_flight, poison=options.poison
        )
        self.buffers = StepBuffers(self.table, sizes)
        self._logprobs = None if logprobs is None else LogprobRing(self.table, sizes, logprobs[0])
        self._prompt_logprobs = None if logprobs is None else PromptLogprobs(self.table, sizes, logprobs[1])
        self.buffers.initialise(self.compute)
        self._state, self._step = self.buffers.state, self.buffers.step
        eos = options.eos_token_ids
        self._admissions = Admissions(
            self.table, self.buffers, self.compute, self.paths, sampler, self._logprobs, self._prompt_logprobs, eos
        )
        self._staging = StepStaging(self.table, self.buffers, self.compute)
        self.buckets = Buckets.reaching(sizes.max_num_seqs, options.buckets)
        self.token_buckets = Buckets.reaching(sizes.max_num_batched_tokens, options.token_buckets, smallest=16)
        recorders = StepRecorders(
            self.buffers,
            target,
            proposer,
            tapes,
            sampler,
            self._logprobs,
            self._prompt_logprobs,
            instrumented=self._instrumented,
            query_len=self.query_len,
            synthetic_acceptance=options.synthetic_acceptance,
        )
        if proposer is not None and proposer.works_beside:
            self.compute.let_fork()
        kept = None if proposer is None else proposer.backlog
        self._backlog = None if kept is None else ContextBacklog(kept.depth)
        before, after = self._before_launch, self.table.after_launch
        self.library = GraphLibrary(self.compute, recorders.by_family(), options.graph_mode, before, after)
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
        backlog = self._backlog if 0 in self.draft_lengths else None
        if backlog is not None:
            steps += [GraphKey.uniform(rows, 1, defers=True) for rows in self.buckets.sizes]
        if self._sampler is not None:
            steps += [replace(key, sampled=True) for key in steps]
        logprobs = [] if self._logprobs is None else [GraphKey.logprobs(rows) for rows in self.buckets.sizes]
        if self._prompt_logprobs is not None:
            logprobs.append(self._prompt_logprobs.key)
        if self._proposer is None:
            return [*steps, *logprobs]
        # Keys that propose alike are one graph: a verify step of eight rows and a mixed one of as many tokens, say.
        proposes = (True, False) if 0 in self.draft_lengths else (True,)
        drafting = {
            self._propose_key(step, rows, more): None
            for step in steps
            for rows in self.buckets.sizes
            for more in proposes
            if not step.defers and (more or backlog is None or step.family is not Family.DECODE)
        }
        late = [] if backlog is None else [GraphKey.catch_up(rows, backlog.depth) for rows in self.buckets.sizes]
        return [*steps, *logprobs, *drafting, *late]

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
                name = re.sub(r"\W+", "-", str(key)).strip("-")
                (folder / f"{name}.dot").write_text(trace.dot(str(key)), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"graphs.dot = {folder}: cannot be written: {error.strerror}; name a folder that can") from error
        logger.info("wrote %d graphs to %s", len(self.library.traces), folder)

    def _instrumented(self, launch: Launcher, key: GraphKey) -> Launcher:
        """Where the launches of a step go: straight on, or past the tapes first."""
        return launch if self._tapes is None else TapedLauncher(launch, self._tapes, key, self._step)

    # ---- a step ------------------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> StepOutcome:
        """Queue a whole step: admissions, inputs, target, outcome on its way, drafts for the next step."""
        self._phases.mark(Phase.STAGE)
        key = self._key(plan)
        self._catch_up_before(plan, defers=key.defers)
        for admission in plan.admissions:
            self._admissions.admit(admission)
        self._staging.stage(plan)
        self._phases.mark(Phase.LAUNCH)
        key = self._variant(plan, key)
        self._run(key)
        self.paths.launched(key, len(plan.rows))
        self.buffers.outcomes.submit(plan.step, self.compute, self.copy)
        logprobs, of_prompts = self._launch_logprobs(plan), None
        if self._prompt_logprobs is not None and plan.query_len is None:
            of_prompts = self._prompt_logprobs.launch(plan.rows, self._run, self.compute, self.copy)
        if key.defers:
            assert self._backlog is not None
            self._backlog.deferred(plan)
            self.paths.deferred += 1
        elif self._proposer is not None:
            # In every arm: the step that ends a prefill already drafts for the first decode step.
            self._run(self._propose_key(key, self._bucket(len(plan.rows)), plan.proposes))
            self.paths.proposals += 1
        return StepOutcome(plan, self.buffers.outcomes, logprobs, of_prompts)

    def _launch_logprobs(self, plan: StepPlan) -> PendingLogprobs | None:
        """In front of the propose graph, while the step's logits are still there."""
        wanted = None if self._logprobs is None else self._logprobs.wanted(plan.rows)
        if self._logprobs is None or wanted is None:
            return None
        self._run(GraphKey.logprobs(self._bucket(len(plan.rows))))
        return self._logprobs.submit(wanted, self.compute, self.copy)

    def _catch_up_before(self, plan: StepPlan, *, defers: bool) -> None:
        """Bring the drafter's context up to date where `plan` reads it, or changes whose rows and pages they are that wait."""
        backlog = self._backlog
        if backlog is None or not backlog.must_catch_up(plan, defers=defers):
            return
        self._run(GraphKey.catch_up(self._bucket(backlog.slots), backlog.depth))
        backlog.caught_up()
        self.paths.catch_ups += 1

    def _before_launch(self, graph: StepGraph) -> None:
        """What refuses a stale read."""
        self.table.before_launch(graph)
        if self._backlog is not None:
            self._backlog.before_launch(graph)

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
            defers = self._backlog is not None and plan.query_len == 1 and not plan.proposes
            return GraphKey.uniform(self._bucket(len(plan.rows)), plan.query_len, defers=defers)
        tokens = self.token_buckets.up(plan.num_tokens)
        assert tokens is not None, f"plan of {plan.num_tokens} tokens exceeds the largest bucket {self.token_buckets.sizes}"
        return GraphKey.mixed(self.sizes.max_num_seqs, tokens)

    def _variant(self, plan: StepPlan, key: GraphKey) -> GraphKey:
        """The sampled graph when a request of the step asks for more than the argmax of the raw logits."""
        by_slot = self._admissions.sampled_reasons
        if not any(by_slot):  # of any slot, held or not: the common case, without a look at the rows
            return key
        reasons = {by_slot[row.slot] for row in plan.rows} - {None}
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
            del self._target, self._proposer, self._admissions, self._staging, self._state, self._step, self.buffers
