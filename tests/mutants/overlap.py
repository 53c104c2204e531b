"""Mutations of what host and device do at once: waits for more than is wanted. Every token stays, and the device runs dry."""

from __future__ import annotations

from tests.mutants.mutation import Edit, gated

_ENGINE, _STAGING, _LANDING = "runtime/engine.py", "runtime/staging.py", "runtime/landing.py"

MUTATIONS = (
    gated(
        "one-landing-event-for-all-blocks",
        "9b-19",
        (
            Edit(_LANDING, "stream.record(self._events[i])", "stream.record(self._events[0])"),
            Edit(_LANDING, "version, self._events[i], self._blocks[i])", "version, self._events[0], self._blocks[i])"),
        ),
        gate="G1",
        axis="overlap",
        silent=True,
        text="the event stands for the latest copy, which is a later one than that waited for: right, and never ahead",
    ),
    gated(
        "landing-event-of-another-block",
        "9b-19",
        Edit(_LANDING, "version, self._events[i], self._blocks[i])", "version, self._events[i - 1], self._blocks[i])"),
        gate="G1",
        axis="overlap",
        text="with two blocks the other event is that of the next step: right, and never ahead",
    ),
    gated(
        "one-produced-event-for-all-blocks",
        "9b-19",
        Edit(
            _STAGING,
            "block, produced = self._blocks[step % self.depth], self._produced[step % self.depth]",
            "block, produced = self._blocks[step % self.depth], self._produced[0]",
        ),
        gate="G1",
        axis="overlap",
        silent=True,
        text="shared memory only: the host waits for the next step's outcome, and this one's is there as well",
    ),
    gated(
        "never-more-than-two-steps-in-flight",
        "9e-54",
        Edit(_ENGINE, "len(self._in_flight) > self.steps_ahead)", "len(self._in_flight) > min(self.steps_ahead, 1))"),
        gate="G1",
        axis="steps in flight",
        silent=True,
        text="three steps in flight yield what two do",
    ),
    gated(
        "drained-now-and-then",
        "9b-18",
        Edit(
            _ENGINE,
            "        plan = self.scheduler.schedule()\n        if plan is not None:\n",
            "        if sum(self.runner.paths.steps.values()) % 8 == 7:\n"
            "            self.drain()\n"
            "        plan = self.scheduler.schedule()\n        if plan is not None:\n",
        ),
        gate="G1",
        axis="steps in flight",
        silent=True,
        text="every wait is for an outcome that is wanted anyway, only too early",
    ),
)
