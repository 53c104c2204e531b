"""What a trace says: time of a step, how busy the device was, and what lay between replays. Pure: records in, numbers out.

The two wrong conclusions of this trade are refused: that a device idles, read off a trace without graph records, and the time of a
step, read off a run that was slowed by recording every node of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from runtime.phase_clock import Phase, PhaseSpan
from runtime.profile.checks import check_trace, replay_rows
from runtime.profile.intervals import Interval, complement, exclusive, overlap, total, union
from runtime.profile.trace import Kind, Mode, Replay, Trace, TraceRefusedError

GAP_BOUNDS_US = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
OVERLAP_OF_CLOCKS = 1e-3
"""Share of a replay by which its nodes may overlap without anybody having let them."""
DEVICE = "device"


@dataclass(frozen=True)
class Busy:
    """Share of the window in which the device did anything: the union of all records, never their sum.

    Attributes:
        idle: what the union leaves out, in order.
        upper_bound: replays count as busy throughout, because the trace does not look inside; or kernels of one replay overlap, and
            one that was started early counts as busy while it waits for the one before it.
    """

    window_ns: int
    busy_ns: int
    idle: tuple[Interval, ...]
    upper_bound: bool

    @property
    def percent(self) -> float:
        return 100.0 * self.busy_ns / self.window_ns


@dataclass(frozen=True)
class Gap:
    """From the end of a replay to the beginning of the next.

    Attributes:
        before, after: keys of the two replays.
        working_ns: of it, how long the device did something else: staged inputs, outcomes, admissions.
        cause: the host phase that held the next replay back, or DEVICE when it had been queued before the gap began.
        queued_ns: how long before the gap the next replay had been queued; negative when it came late.
    """

    start: int
    end: int
    before: str
    after: str
    working_ns: int
    cause: str
    queued_ns: int

    @property
    def length_ns(self) -> int:
        return self.end - self.start


class Analysis:
    """A trace that was checked. Every figure is of its window.

    Raises TraceRefusedError: see runtime.profile.checks.
    """

    def __init__(self, trace: Trace) -> None:
        check_trace(trace)
        self.trace = trace
        if trace.mode is Mode.HOST:
            self.spans: list[Interval] = [(replay.start, replay.end) for replay in trace.replays]
        else:
            rows = replay_rows(trace)
            self.spans = [(min(node.start for node in nodes), max(node.end for node in nodes)) for nodes in rows]
            self.nodes = rows
        first, last = trace.window
        self.window: Interval = (self.spans[first][0], self.spans[last][0])

    def replays_inside(self, key: str, what: str) -> list[int]:
        """Places of the replays of `key` in the window, for `what`, which looks at their nodes.

        Raises:
            TraceRefusedError: not a node trace, or no replay of `key` in its window.
        """
        if self.trace.mode is not Mode.NODE:
            raise TraceRefusedError(
                f"{what} of {key}: a {self.trace.mode.value} trace does not look inside a replay; use --trace node"
            )
        first, last = self.trace.window
        chosen = [place for place in range(first, last) if self.trace.replays[place].key == key]
        if not chosen:
            raise TraceRefusedError(f"{what} of {key}: the window of the node trace has no replay of it; profile more steps")
        return chosen

    def step_ns(self) -> float:
        """Time of a step: the window over its steps.

        Raises:
            TraceRefusedError: a node trace, which slows the run that it looks at.
        """
        if self.trace.mode is Mode.NODE:
            raise TraceRefusedError(
                "time of a step: a node trace has none, recording every node slows the run; take it from the untraced pass"
            )
        return (self.window[1] - self.window[0]) / self.trace.steps

    def slowed_step_ns(self) -> float:
        """Time of a step as this pass ran it: of a node trace to say how much it was slowed, and for nothing else."""
        return (self.window[1] - self.window[0]) / self.trace.steps

    def busy(self) -> Busy:
        """Raises TraceRefusedError: the trace has no record of the work inside replays, or comes from a device without a clock."""
        mode = self.trace.mode
        if mode is Mode.HOST:
            raise TraceRefusedError("busy: this device has no clock of its own, host and device share the processor; needs a GPU")
        if mode is Mode.EVENTS:
            raise TraceRefusedError("busy: the untraced pass has no graph records; take it from the graph or the node pass")
        if mode is Mode.GRAPH and not any(activity.kind is Kind.GRAPH for activity in self.trace.activities):
            raise TraceRefusedError("busy: the trace has no graph records, so every replay would count as idle")
        covered = union((activity.interval for activity in self.trace.activities), self.window)
        return Busy(
            window_ns=self.window[1] - self.window[0],
            busy_ns=total(covered),
            idle=tuple(complement(covered, self.window)),
            upper_bound=mode is Mode.GRAPH or any(self.overlaps(key) for key in self.replays_by_key()),
        )

    def gaps(self) -> list[Gap]:
        """Between each two replays that follow one another in the window, in order; overlapping ones have a gap of length 0.

        Raises TraceRefusedError: the device has no clock of its own.
        """
        if self.trace.mode is Mode.HOST:
            raise TraceRefusedError("gaps: this device has no clock of its own, nothing runs beside the host; needs a GPU")
        first, last = self.trace.window
        others = [activity.interval for activity in self.trace.activities if not activity.graph]
        return [self._gap(index, others) for index in range(first, last)]

    def _gap(self, index: int, others: Sequence[Interval]) -> Gap:
        start, end = self.spans[index][1], self.spans[index + 1][0]
        end = max(start, end)
        launch = self.trace.replays[index + 1]
        return Gap(
            start,
            end,
            self.trace.replays[index].key,
            launch.key,
            total(union(others, (start, end))),
            cause_of(start, launch, self.trace.phases),
            start - launch.end,
        )

    def span_ns(self, key: str) -> float:
        """Mean time of a replay of `key` in the window; 0 when none ran."""
        first, last = self.trace.window
        spans = [self.spans[i] for i in range(first, last) if self.trace.replays[i].key == key]
        return total(spans) / len(spans) if spans else 0.0

    def overlapped_ns(self, key: str) -> float:
        """By how much the nodes of a replay of `key` overlap, on average: their lengths less their union. Of a node trace."""
        first, last = self.trace.window
        nodes = [self.nodes[i] for i in range(first, last) if self.trace.replays[i].key == key]
        lengths = sum(node.end - node.start for replay in nodes for node in replay)
        return (lengths - sum(sum(exclusive(node.interval for node in replay)) for replay in nodes)) / len(nodes) if nodes else 0.0

    def overlaps(self, key: str) -> bool:
        """Were nodes of `key` started early? Those in full order overlap by some nanoseconds now and then, as clocks go."""
        return self.overlapped_ns(key) > OVERLAP_OF_CLOCKS * self.span_ns(key)

    def replays_by_key(self) -> Counter[str]:
        """Replays of the window by key."""
        first, last = self.trace.window
        return Counter(replay.key for replay in self.trace.replays[first:last])

    def phase_ns(self) -> dict[Phase, float]:
        """Host time of each phase, per step: of the steps whose first launch lies in the window."""
        first, last = self.trace.window
        begin, end, steps = self.trace.replays[first].start, self.trace.replays[last].start, self.trace.steps
        return {
            phase: sum(overlap((span.start, span.end), (begin, end)) for span in self.trace.phases if span.phase is phase) / steps
            for phase in Phase
        }


def cause_of(start: int, launch: Replay, phases: Sequence[PhaseSpan]) -> str:
    """What held back a replay whose predecessor ended at `start`: the phase in which the host spent most of the wait."""
    if launch.end <= start:
        return DEVICE
    waiting = (start, launch.end)
    shares: Counter[str] = Counter()
    for span in phases:
        if shared := overlap((span.start, span.end), waiting):
            shares[span.phase.label] += shared
    return shares.most_common(1)[0][0] if shares else Phase.OUTSIDE.label


def histogram(gaps: Sequence[Gap]) -> list[tuple[str, int]]:
    """Gaps by length: (range in microseconds, count), empty ranges included."""
    bounds = (0, *GAP_BOUNDS_US)
    counts = [0] * len(bounds)
    for gap in gaps:
        counts[max(i for i, bound in enumerate(bounds) if gap.length_ns >= bound * 1000)] += 1
    names = [f"{low}-{high}" for low, high in pairwise(bounds)] + [f">={bounds[-1]}"]
    return list(zip(names, counts, strict=True))
