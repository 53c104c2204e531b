"""Lanes: a trace as rows of coloured bars, the one layout behind picture, page and trace file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.phase_clock import Phase
from runtime.profile.analysis import Analysis
from runtime.profile.families import BETWEEN, family_of, operation
from runtime.profile.trace import Activity, Kind, Mode

PHASE_COLOURS = {
    Phase.SCHEDULE.label: "#17a2b8",
    Phase.STAGE.label: "#a0a81f",
    Phase.LAUNCH.label: "#d62728",
    Phase.COLLECT.label: "#dddddd",
    Phase.UPDATE.label: "#8c6d31",
    Phase.DETOKENISE.label: "#2ca02c",
}
GRAPH_COLOURS = {
    "decode": "#2f5d8c",
    "verify": "#2f5d8c",
    "mixed": "#3f8f6b",
    "propose": "#9467bd",
    "context": "#c5b0d5",
    "catch up": "#c5b0d5",
    "logprobs": "#e377c2",
    "prompt logprobs": "#e377c2",
}
FAMILY_COLOURS = {
    "products": "#4c78a8",
    "attention": "#f58518",
    "elementwise": "#eeca3b",
    "sampling": "#e45756",
    "drafter": "#9467bd",
    "step": "#72b7b2",
    "copies": "#9d755d",
    "other": "#bab0ac",
    BETWEEN: "#ffffff",
}
_FIRST_WORD = re.compile(r"\w+")
COLOURS = PHASE_COLOURS | GRAPH_COLOURS | FAMILY_COLOURS


@dataclass(frozen=True)
class Bar:
    """Something that lasted, in nanoseconds of the trace. group: what its colour stands for, a key of COLOURS."""

    start: int
    end: int
    text: str
    group: str

    def label(self, most: float) -> str:
        """What fits into so many characters: the text, its first word, or nothing."""
        short = _FIRST_WORD.match(self.text)
        return next((text for text in (self.text, short.group() if short else "") if len(text) <= most), "")


@dataclass(frozen=True)
class Lane:
    """One row. name: whose row it is."""

    name: str
    bars: tuple[Bar, ...]


def lanes_of(analysis: Analysis, begin: int, end: int) -> list[Lane]:
    """The host and each stream of the device between two moments, bars cut to them."""
    trace = analysis.trace
    host = [
        Bar(span.start, span.end, span.phase.label, span.phase.label)
        for span in trace.phases
        if span.phase is not Phase.OUTSIDE
    ]
    lanes = [Lane("host", _cut(host, begin, end))]
    key_of = _keys_of_launches(analysis)
    for stream in streams(trace.activities):
        bars = [_bar(analysis, activity, key_of) for activity in trace.activities if activity.stream == stream]
        lanes.append(Lane(stream_name(analysis, stream), _cut(bars, begin, end)))
    return [lane for lane in lanes if lane.bars]


def streams(activities: Sequence[Activity]) -> list[str]:
    """Names of streams, the busiest with graphs first: that is the compute stream."""
    counts: dict[str, int] = {}
    for activity in activities:
        counts[activity.stream] = counts.get(activity.stream, 0) + (1 if not activity.graph else 1000)
    return sorted(counts, key=lambda stream: -counts[stream])


def stream_name(analysis: Analysis, stream: str) -> str:
    """What a stream is for: replays run on `compute`; a device's own tools know streams by number only, which is in brackets."""
    if analysis.trace.mode is Mode.HOST:
        return f"queue: {stream}"
    kinds = {activity.kind for activity in analysis.trace.activities if activity.stream == stream}
    if Kind.GRAPH in kinds or any(activity.graph for activity in analysis.trace.activities if activity.stream == stream):
        return f"GPU: compute ({stream})" if stream.isdecimal() else f"GPU: {stream}"
    return f"GPU: copy ({stream})" if kinds == {Kind.MEMCPY} else f"GPU: stream {stream}"


def middle_steps(analysis: Analysis, count: int) -> tuple[int, int]:
    """Begin and end on the device of `count` steps in the middle of the window, or of as many as it has."""
    first, last = analysis.trace.window
    opening = [index for index in range(first, last + 1) if analysis.trace.replays[index].opens]
    count = min(count, len(opening) - 1)
    at = (len(opening) - 1 - count) // 2
    return analysis.spans[opening[at]][0], analysis.spans[opening[at + count]][0]


def _bar(analysis: Analysis, activity: Activity, key_of: dict[int, str]) -> Bar:
    if activity.kind is Kind.GRAPH:
        key = key_of.get(activity.launch, activity.name)
        return Bar(activity.start, activity.end, key, key.partition("[")[0])
    family = family_of(activity, analysis.trace.families)
    size = f" {activity.nbytes:,} B" if activity.nbytes else ""
    return Bar(activity.start, activity.end, operation(activity.name) + size, family)


def _keys_of_launches(analysis: Analysis) -> dict[int, str]:
    """Launch id -> key of the graph, where the records of the device tell launches apart."""
    if analysis.trace.mode is Mode.HOST:
        return {number: replay.key for number, replay in enumerate(analysis.trace.replays, start=1)}
    return {nodes[0].launch: replay.key for nodes, replay in zip(analysis.nodes, analysis.trace.replays, strict=True)}


def _cut(bars: Sequence[Bar], begin: int, end: int) -> tuple[Bar, ...]:
    inside = (Bar(max(bar.start, begin), min(bar.end, end), bar.text, bar.group) for bar in bars)
    return tuple(sorted((bar for bar in inside if bar.start < bar.end), key=lambda bar: bar.start))
