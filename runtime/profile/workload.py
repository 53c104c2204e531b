"""The workload of a profile: requests that decode side by side for a number of steps, none of which begins or ends among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.cut_short import room_beside
from runtime.errors import ConfigError
from runtime.generation import Generation
from runtime.intake import Expects, Intake
from runtime.profile.collectors import ReplayLog
from runtime.prompts import Prompt
from runtime.sampling import SamplingParams

SLACK_STEPS = 8
"""Steps beyond those asked for: the one that closes the window, and those in flight."""


@dataclass(frozen=True)
class Window:
    """What a workload says of its window.

    Attributes:
        replays: indices in the log of the first replay and of the one behind the last.
        tokens: that were delivered while it lasted.
        context: tokens of all requests together in the middle of it: those that a step attends to.
    """

    replays: tuple[int, int]
    tokens: int
    context: int


@dataclass(frozen=True)
class Workload:
    """What the profiled engine does.

    Attributes:
        prompts: one for each request; all run at the same time.
        warmup_steps: decode steps before the window. steps: of the window.
    """

    prompts: Sequence[Prompt]
    warmup_steps: int
    steps: int

    def tokens_at_most(self, num_speculative_tokens: int) -> int:
        """That one request may produce, with every draft accepted."""
        return (self.warmup_steps + self.steps + SLACK_STEPS) * (1 + num_speculative_tokens)

    def expects(self, num_speculative_tokens: int) -> Expects:
        """What an engine is told before it reads weights: do the requests fit, and grow by as much as the steps need?"""

        def check(intake: Intake) -> None:
            lengths = [len(intake.encode(prompt, f"prompt {number}")) for number, prompt in enumerate(self.prompts, start=1)]
            self._refuse_too_long(max(lengths), intake.max_model_len, num_speculative_tokens)

        return check

    def steps_that_fit(self, intake: Intake, num_speculative_tokens: int) -> int:
        """Those of this workload, or as many as the model's length leaves beside the prompts; where it leaves none, `expects`
        says so. Raises DraftgraphError: a prompt cannot be used."""
        most = self._most_steps(room_beside(intake, self.prompts), num_speculative_tokens)
        return self.steps if most < 1 else min(self.steps, most)

    def run(self, engine: Any, log: ReplayLog, params: SamplingParams) -> Window:
        """Play the workload.

        Raises:
            ConfigError: the requests cannot all decode for that many steps.
        """
        k = engine.scheduler.limits.num_speculative_tokens
        needed = self.tokens_at_most(k)
        endless = replace(params, max_tokens=min(needed, 2**31 - 1), ignore_eos=True, stop=(), stop_token_ids=())
        generations = [engine.submit(prompt, endless, index=index) for index, prompt in enumerate(self.prompts)]
        try:
            lengths = [len(generation.request.prompt_token_ids) for generation in generations]
            self._refuse_too_long(max(lengths), engine.scheduler.max_model_len, k)
            context = sum(lengths)
            while engine.scheduler.num_waiting or log.uniform_steps() < self.warmup_steps:
                context += self._step(engine, generations)
            first = len(log)
            tokens = sum(self._step(engine, generations) for _ in range(self.steps))
            last = len(log)
            self._step(engine, generations)
        finally:
            for generation in generations:
                engine.cancel(generation.request.request_id)
        engine.drain()  # not behind an interrupt, which may have come in the middle of a step
        return Window((first, last), tokens, context + tokens // 2)

    def _step(self, engine: Any, generations: Sequence[Generation]) -> int:
        """One step; the tokens that it delivered. Raises ConfigError when a request has ended."""
        engine.step()
        tokens = 0
        for generation in generations:
            while generation.events:
                tokens += len(generation.events.pop(0).token_ids)
            if generation.output is not None:
                raise ConfigError(
                    f"a request ended inside the window ({generation.output.finish_reason}): {len(generations)} requests cannot "
                    f"decode side by side for {self.steps} steps; lower --steps or --concurrency, or raise scheduler.num_blocks"
                )
        return tokens

    def _most_steps(self, room: int, num_speculative_tokens: int) -> int:
        """Steps of a window in which no request grows by more than `room` tokens; below 1: there are none."""
        return room // (1 + num_speculative_tokens) - self.warmup_steps - SLACK_STEPS

    def _refuse_too_long(self, longest: int, max_model_len: int, num_speculative_tokens: int) -> None:
        """longest: tokens of the longest prompt. Raises ConfigError."""
        needed, per_step = self.tokens_at_most(num_speculative_tokens), 1 + num_speculative_tokens
        room = max_model_len - longest
        if needed > room:
            most = self._most_steps(room, num_speculative_tokens)
            raise ConfigError(
                f"--steps = {self.steps}: with {per_step} tokens a step a request may grow by {needed} tokens, and {room} are left "
                f"beside its prompt (scheduler.max_model_len = {max_model_len}); "
                + (f"lower --steps to {most}" if most > 0 else "raise scheduler.max_model_len")
            )
