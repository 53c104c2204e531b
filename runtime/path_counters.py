"""PathCounters: which way the steps of an engine went; evidence that two arms of a comparison differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graphs.key import Family, GraphKey


@dataclass
class PathCounters:
    """Plain counts since the engine was opened.

    Attributes:
        steps: by family of the target's graph.
        padded_rows: rows that were launched beyond the live ones, to fill up a captured size.
        sampled_steps: steps that took a sampled graph, by what a request in them asked for.
        degenerate_tokens: requests that ended in front of a token for which the logits were all NaN or masked.
        late_captures: graphs that were captured when the first request needed them, not at the start.
        proposals: launches of a propose graph, or of one that only moves a drafter's context on; one a step wherever something
            speculates, but for those that are `deferred`.
        deferred: decode steps whose rows wait until the drafter's context is brought up to date.
        catch_ups: times that it was.
        admissions: requests that entered a slot, those that came back after a preemption included.
        collected_late: outcomes that were waited for with a later step already launched: what the asynchronous arm does.
        collected_at_once: outcomes that were waited for with nothing launched behind them: every one of the synchronous arm; of
            the asynchronous arm those at the end of the work.
        fall_outs: launches that did not replay a captured graph, by reason.
    """

    steps: Counter[Family] = field(default_factory=Counter)
    padded_rows: int = 0
    sampled_steps: Counter[str] = field(default_factory=Counter)
    degenerate_tokens: int = 0
    late_captures: int = 0
    proposals: int = 0
    deferred: int = 0
    catch_ups: int = 0
    admissions: int = 0
    collected_late: int = 0
    collected_at_once: int = 0
    fall_outs: Counter[str] = field(default_factory=Counter)

    def launched(self, key: GraphKey, num_rows: int) -> None:
        """A step of `num_rows` live rows was queued with the graph of `key`."""
        self.steps[key.family] += 1
        self.padded_rows += key.num_requests - num_rows

    def collected(self, *, steps_behind: int) -> None:
        """An outcome was waited for while `steps_behind` later steps were launched already."""
        if steps_behind:
            self.collected_late += 1
        else:
            self.collected_at_once += 1

    def as_dict(self) -> dict[str, Any]:
        values = dict(vars(self))
        values["steps"] = {family.value: count for family, count in sorted(self.steps.items())}
        values["sampled_steps"] = dict(self.sampled_steps)
        values["fall_outs"] = dict(self.fall_outs)
        return values
