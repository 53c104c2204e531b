"""StepOutcome: one step in flight, and the one wait that its results cost."""

from __future__ import annotations

from dataclasses import replace

from kernels.publish import OUTCOME_FIELDS
from runtime.logprob_ring import PendingLogprobs
from runtime.plan import StepPlan, StepResult
from runtime.prompt_logprobs import PendingPromptLogprobs
from runtime.staging import OutcomeRing


class StepOutcome:
    """One step in flight. Its results cannot be had without waiting for its event, and only once."""

    def __init__(
        self,
        plan: StepPlan,
        ring: OutcomeRing,
        logprobs: PendingLogprobs | None,
        prompt_logprobs: PendingPromptLogprobs | None,
    ) -> None:
        self.plan = plan
        self._ring = ring
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs

    def collect(self) -> StepResult:
        """Block the host until this step's outcome has arrived: the one wait of a steady step (and one more for log probabilities,
        which leave the device right behind it)."""
        rows = self._ring.collect(self.plan.step)[: len(self.plan.rows)].tolist()
        num_sampled, num_drafts, finished, nothing_left = list(zip(*rows, strict=True))[:OUTCOME_FIELDS]
        sampled = [row[OUTCOME_FIELDS:] for row in rows]
        result = StepResult(sampled, num_sampled, num_drafts, finished, nothing_left)
        if self._logprobs is not None:
            result = replace(result, logprobs=self._logprobs.collect([result.tokens(row) for row in range(len(rows))]))
        if self._prompt_logprobs is not None:
            result = replace(result, prompt_logprobs=self._prompt_logprobs.collect())
        return result
