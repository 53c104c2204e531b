"""ContextBacklog: how far a drafter's context is behind, and when it has to catch up: the host's side of graphs/draft_backlog.py"""

from __future__ import annotations

from graphs.key import Family
from graphs.library import StepGraph
from runtime.mirror_errors import StaleReadError
from runtime.plan import StepPlan


class ContextBacklog:
    """Knows which decode steps wait. It moves nothing: the runner launches, and says here what it has launched.

    Rows wait by slot and position, so that they may as long as the requests are the ones that left them: a request that has gone
    leaves its slot to another, and its pages to anybody. It is missed in the first plan that does without it, and nothing of its
    successor is launched before that one.

    Args:
        depth: consecutive decode steps that may wait.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.steps = 0
        self._epochs: tuple[int, ...] = ()
        self._slots = 0

    @property
    def slots(self) -> int:
        """Rows wait of none but the slots below this one."""
        return self._slots

    def must_catch_up(self, plan: StepPlan, *, defers: bool) -> bool:
        """Before anything of `plan` is launched, its admissions included. defers: its rows are to wait as well."""
        if not self.steps:
            return False
        if not defers or self.steps == self.depth:
            return True
        now = _epochs_of(plan)
        return now != self._epochs and not set(self._epochs) <= set(now)

    def deferred(self, plan: StepPlan) -> None:
        """The rows of `plan` wait."""
        self.steps += 1
        now = _epochs_of(plan)
        if now != self._epochs:  # the next step is nearly always one of the same requests
            self._epochs = now if set(self._epochs) <= set(now) else (*self._epochs, *now)
            self._slots = max(self._slots, *(row.slot + 1 for row in plan.rows))

    def caught_up(self) -> None:
        """Nothing waits: what did is in the context, as far as the compute stream is concerned."""
        self.steps = self._slots = 0
        self._epochs = ()

    def before_launch(self, graph: StepGraph) -> None:
        """Raises StaleReadError where drafts would be made from a context that lacks rows: they would be worse, and no text would
        tell."""
        if self.steps and graph.key.family is Family.PROPOSE:
            raise StaleReadError(
                f"stale read of the drafter's context by {graph.key}: the rows of {self.steps} decode steps, of slots below "
                f"{self.slots}, are kept and not in it; launch a {Family.CATCH_UP.value} graph first"
            )


def _epochs_of(plan: StepPlan) -> tuple[int, ...]:
    return tuple([row.epoch for row in plan.rows])
