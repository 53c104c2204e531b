"""The engine: prompts in, text out. Its loop launches step N + 1 before it collects step N."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any

from runtime.errors import ConfigError, DeviceError, PromptError, SamplingError
from runtime.generation import Generation, Place
from runtime.intake import Expects, Intake
from runtime.phase_clock import NO_PHASES, NoPhases, Phase
from runtime.plan import TokenUpdate
from runtime.prompts import Prompt, as_prompt_list
from runtime.report import RequestOutput, StreamEvent
from runtime.request import Request
from runtime.request_seed import samples_of, with_seed
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.shown_value import shown
from runtime.step_runner import Outcome, StepRunner
from runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Engine:
    """Batched generation over one model on one device.

    Build it with `Engine.from_config`; use it as a context manager, or call `close`. One thread at a time may use it.

    Args:
        description: what `info` says beside what the runner knows.
        steps_ahead: steps that stay in flight while the next is launched: 1 for the asynchronous runner; 0 waits for each step.
        seed: what the seeds of sampled requests are made from that name none.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        intake: Intake,
        default_params: SamplingParams,
        *,
        steps_ahead: int,
        description: Mapping[str, Any] | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.steps_ahead = steps_ahead
        self._intake = intake
        self._default_params = default_params
        self._clock = clock
        self._description = dict(description or {})
        self._in_flight: deque[Outcome] = deque()
        self._generations: dict[str, Generation] = {}
        self._request_numbers = itertools.count()
        self._seed = seed
        self._closed = False
        self._stopped = 0  # the thread whose step has not come to its end
        self.phases: NoPhases = NO_PHASES

    @classmethod
    def from_config(
        cls, source: Any, *, progress: Any = None, on_device: Any = None, expects: Expects | None = None, **overrides: Any
    ) -> Engine:
        """Load a model and capture its graphs.

        Args:
            source: path of a YAML file, a mapping of the same shape, or a RunConfig.
            progress: opens a progress bar by title (runtime.console.progress_bar); None shows nothing.
            on_device: an open runtime.device.Device to use instead of opening the one that the configuration names, e.g. a virtual
                device with another schedule. The engine closes it.
            expects: looks at the requests that will come as soon as they can be looked at, before weights are read; what it raises
                ends the opening.
            overrides: as `runtime.config.load_config` takes them, e.g. `runner__async=False`.

        Raises:
            DraftgraphError: config, source, checkpoint or device cannot be used; the text says what to do.
        """
        for name, hook in (("progress", progress), ("expects", expects)):
            if hook is not None and not callable(hook):
                raise ConfigError(f"{name} = {shown(hook)}: must be a function, or None")
        if on_device is not None and not hasattr(on_device, "stream"):
            raise DeviceError(f"on_device = {shown(on_device)}: must be an open device, as open_device() returns one")
        from runtime.assembly import assemble

        return assemble(source, progress=progress, on_device=on_device, expects=expects, **overrides)

    # ---- the loop ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Launch step N + 1, then collect step N. Events land in the generations that they belong to.

        Raises:
            RuntimeError: the engine is closed, or stopped in the middle of an earlier step.
        """
        self._require_open()
        # A step that does not come to its end leaves scheduler, rings and device at different steps: nothing can follow it.
        self._stopped = get_ident()
        self.phases.mark(Phase.SCHEDULE)
        plan = self.scheduler.schedule()
        if plan is not None:
            self._in_flight.append(self.runner.launch(plan))
        if self._in_flight and (plan is None or len(self._in_flight) > self.steps_ahead):
            self._collect()
        self.phases.mark(Phase.OUTSIDE)
        self._stopped = 0

    def _collect(self) -> None:
        """Wait for the oldest step in flight, and deliver what it yielded."""
        outcome = self._in_flight.popleft()
        self.runner.paths.collected(steps_behind=len(self._in_flight))
        self.phases.mark(Phase.COLLECT)
        result = outcome.collect()
        self.phases.mark(Phase.UPDATE)
        updates = self.scheduler.update(outcome.plan, result)
        self.phases.mark(Phase.DETOKENISE)
        self._deliver(updates)

    def _deliver(self, updates: Iterable[TokenUpdate]) -> None:
        for update in updates:
            generation = self._generations[update.request_id]
            kept = generation.push(update)
            if generation.stopped_by_string:
                self.scheduler.roll_back(update, kept)
                self.scheduler.finish(update.request_id, "stop")
            if generation.output is not None:
                del self._generations[update.request_id]
                if generation.output.finish_reason == "error":
                    self._report_nothing(generation.output)

    def _report_nothing(self, output: RequestOutput) -> None:
        self.runner.paths.degenerate_tokens += 1
        logger.warning(
            "%s: no token could be chosen behind its first %d: every logit is NaN or masked (allowed_token_ids, bad_words, "
            "logit_bias, min_tokens); it ends there", output.request_id, len(output.token_ids),
        )  # fmt: skip

    # ---- requests ----------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, *, index: int = 0) -> Generation:
        """Queue one request; `step` moves it on.

        Raises:
            PromptError, CapacityError: the prompt cannot be encoded or can never fit.
            SamplingError: the parameters do not fit the model, or ask for n > 1, which is `stream`'s and `generate`'s.
        """
        self._require_open()
        if type(index) is not int or index < 0:
            raise PromptError(f"index = {shown(index)}: must be an integer from 0 on, the place of the prompt among the outputs")
        token_ids = self._intake.encode(prompt, f"prompt {index + 1}")
        params = self._intake.resolve(self._default_params if params is None else params)
        if params.n > 1:
            raise SamplingError(f"n = {params.n}: submit() queues one sequence; use stream() or generate(), or submit n times")
        return self._queue(Place(index, index), prompt, token_ids, params)

    def _queue(self, place: Place, prompt: Prompt, token_ids: Sequence[int], params: SamplingParams) -> Generation:
        number = next(self._request_numbers)
        params = with_seed(params, self._seed, number)
        request = Request(f"request-{number}", token_ids, params, arrival_time=self._clock())
        speculates = self.scheduler.limits.num_speculative_tokens > 0
        generation = Generation(place, prompt, request, self.tokenizer, speculates)
        self.scheduler.add(request)
        self._generations[request.request_id] = generation
        return generation

    def cancel(self, request_id: str) -> bool:
        """End a request early, with what it has produced; False when it had ended before. Its frames in flight are dropped.

        Raises:
            PromptError: no id of a request at all.
        """
        if not isinstance(request_id, str):
            raise PromptError(f"request_id = {shown(request_id)}: must be a text; give generation.request.request_id")
        generation = self._generations.pop(request_id, None)
        if generation is None:
            return False
        self.scheduler.cancel(request_id)
        generation.push(TokenUpdate(request_id, [], "cancelled"))
        return True

    @property
    def has_unfinished(self) -> bool:
        """Requests that have not ended, or steps in flight."""
        return self.scheduler.has_unfinished or bool(self._in_flight)

    # ---- calls -------------------------------------------------------------------------------------------------

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> Iterator[StreamEvent]:
        """Events of all prompts as they happen; requests that are still running when the iterator is dropped are cancelled.

        Args:
            prompts: a text, a chat, token ids, or a list of these.
            params: for all prompts, or one for each. A prompt with n > 1 becomes n requests, one behind the other.
            names: what messages call each prompt, such as a line of a file; None: "prompt 1" and so on.
        """
        self._require_open()
        several = as_prompt_list(prompts)
        # All prompts are encoded, and may be refused, before the first is queued: an error leaves nothing behind.
        requests = self._intake.requests(several, self._default_params if params is None else params, names)
        generations: list[Generation] = []
        try:
            for number, (prompt, (token_ids, asked)) in enumerate(zip(several, requests, strict=True)):
                for sample, one in enumerate(samples_of(asked)):
                    place = Place(len(generations), number, sample)
                    generations.append(self._queue(place, prompt, token_ids, one))
            yield from self._run(generations)
        finally:
            if not self._stopped:
                for generation in generations:
                    self.cancel(generation.request.request_id)

    def _run(self, generations: Sequence[Generation]) -> Iterator[StreamEvent]:
        pending = list(generations)
        while pending:
            self.step()
            for generation in pending:
                while generation.events:
                    yield generation.events.pop(0)
            pending = [generation for generation in pending if generation.output is None]

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Outputs of all prompts, in their order, the n sequences of a prompt one after the other. Arguments as `stream`."""
        outputs: dict[int, RequestOutput] = {}
        for event in self.stream(prompts, params):
            if event.output is not None:
                outputs[event.index] = event.output
        return [outputs[index] for index in sorted(outputs)]

    # ---- life --------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """What the configuration resolved to, for `draftgraph info`."""
        values = self._description | self.runner.info()
        if lengths := self.scheduler.lengths.describe():
            values["speculator"] = {**values.get("speculator", {}), "draft_lengths": lengths}
        return values

    def trace_phases(self, phases: NoPhases) -> None:
        """Let `phases` hear where each phase of a step begins, from the next step on; NO_PHASES ends it."""
        self.phases = phases
        self.runner.trace_phases(phases)

    def drain(self) -> None:
        """Collect every step in flight."""
        while self._in_flight:
            self._collect()

    def close(self) -> None:
        """Give up what runs and free the device, also after an error or an interrupt in the middle of a step. Idempotent.

        Requests that have not ended are cancelled; results in flight are not collected.

        Raises:
            DeviceError: work that was still queued failed. Everything is freed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._stopped:
                for request_id in list(self._generations):
                    self.cancel(request_id)
        finally:
            self._in_flight.clear()
            self._generations.clear()
            self.runner.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed: open another one")
        if self._stopped and self._stopped != get_ident():
            raise RuntimeError(
                "another thread is in the middle of a step, or stopped there: an engine serves one thread at a time; let them wait "
                "for each other, give all prompts in one call, or open an engine for each"
            )
        if self._stopped:
            raise RuntimeError("the engine stopped in the middle of a step, by an error or an interrupt: close it and open another")

    def __enter__(self) -> Engine:
        if self._closed:
            raise RuntimeError("the engine is closed: open another one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
