"""The passes as a trace file for Perfetto or chrome://tracing: host phases beside the device, arrows from launch to replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.profile.analysis import Analysis
from runtime.profile.lanes import lanes_of
from runtime.profile.trace import Mode

TITLES = {
    Mode.EVENTS: "untraced pass (events around replays)",
    Mode.GRAPH: "graph pass",
    Mode.NODE: "node pass (slowed: proportions only)",
    Mode.HOST: "host and virtual device (no overlap)",
}


def chrome_trace(passes: Mapping[Mode, Analysis]) -> dict[str, Any]:
    """One process a pass, one thread a lane; times in microseconds from the beginning of the pass's window."""
    events: list[dict[str, Any]] = []
    for pid, (mode, analysis) in enumerate(passes.items(), start=1):
        begin, end = _period(analysis)
        events.append(_name("process_name", pid, 0, TITLES[mode]))
        for tid, lane in enumerate(lanes_of(analysis, begin, end)):
            events.append(_name("thread_name", pid, tid, lane.name))
            for bar in lane.bars:
                events.append(
                    {
                        "ph": "X",
                        "pid": pid,
                        "tid": tid,
                        "name": bar.text,
                        "cat": bar.group,
                        "ts": (bar.start - begin) / 1e3,
                        "dur": (bar.end - bar.start) / 1e3,
                    }
                )
        if mode is not Mode.HOST:
            events += _arrows(analysis, pid, begin)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _period(analysis: Analysis) -> tuple[int, int]:
    """The window, and before it the host's work for its first step."""
    first, _ = analysis.trace.window
    return min(analysis.window[0], analysis.trace.replays[first].start), analysis.window[1]


def _arrows(analysis: Analysis, pid: int, begin: int) -> list[dict[str, Any]]:
    """From the launch on the host to the replay on the device, which the compute stream's lane is behind the host's."""
    first, last = analysis.trace.window
    arrows = []
    for number in range(first, last):
        launch, span = analysis.trace.replays[number], analysis.spans[number]
        common = {"pid": pid, "cat": "launch", "name": launch.key, "id": f"{pid}.{number}"}
        arrows.append(common | {"ph": "s", "tid": 0, "ts": (launch.start - begin) / 1e3})
        arrows.append(common | {"ph": "f", "bp": "e", "tid": 1, "ts": (span[0] - begin) / 1e3})
    return arrows


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}
