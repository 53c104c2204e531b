"""Trace: what one pass of a profile saw, as plain records. Nothing here knows where they came from.

All times are nanoseconds of the host's time.perf_counter_ns; whoever collects records of a device brings them onto that clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from runtime.errors import DraftgraphError
from runtime.phase_clock import Phase, PhaseSpan
from runtime.profile.host_calls import HostCalls


class TraceRefusedError(DraftgraphError):
    """The trace cannot answer the question: what it lacks, and which pass can answer it."""


class Mode(str, Enum):
    """How a pass looked at the device."""

    EVENTS = "events"  # untraced: only events of ours, on either side of each replay
    GRAPH = "graph"  # one record a replay, nothing of what is inside it
    NODE = "node"  # one record a node; the run is slowed by it
    CALLS = "calls"  # one record a call of the host into CUDA, and what it waited for; nothing of what the device did
    HOST = "host"  # a device without a clock of its own: work runs on the host, when somebody waits for it


class Kind(str, Enum):
    """What the device was doing."""

    GRAPH = "graph"
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True)
class Activity:
    """One record of the device.

    Attributes:
        launch: the same for all records of one launch of a graph.
        graph: id of the graph that it belongs to, 0 outside graphs.
    """

    kind: Kind
    name: str
    start: int
    end: int
    stream: str
    launch: int = 0
    graph: int = 0
    nbytes: int = 0

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.end


@dataclass(frozen=True)
class Replay:
    """One launch of a graph: its key as text, and the host's call from beginning to end. opens: it is the first of its step."""

    key: str
    start: int
    end: int
    opens: bool


@dataclass
class Trace:
    """One pass.

    Attributes:
        activities: of the whole traced period, in any order.
        replays: of the same period, in the order of launch.
        window: indices of the two replays whose beginnings on the device bound the window; both open a step.
        launches: replays by key as the graph library counted them, independently of `replays`.
        phases: of the host, in order.
        dropped: records that the collector lost. lost_marks: phases that were not kept.
        tokens: that the steps of the window yielded.
        family_bytes: by key and kernel family: bytes that one replay has to read.
        families: operation -> family, of every kernel that a graph launches.
        facts: of the machine and the workload, for the record.
        host_calls: of the window, by the pass that records them.
    """

    mode: Mode
    activities: list[Activity]
    replays: list[Replay]
    window: tuple[int, int]
    launches: Mapping[str, int]
    phases: list[PhaseSpan] = field(default_factory=list)
    dropped: int = 0
    lost_marks: int = 0
    tokens: int = 0
    family_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    host_calls: HostCalls | None = None

    @property
    def steps(self) -> int:
        """Steps of the window: launches that open one, the last not counted."""
        first, last = self.window
        return sum(replay.opens for replay in self.replays[first:last])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = dict(vars(self))
        values["mode"] = self.mode.value
        values["launches"] = dict(self.launches)
        values["activities"] = [[a.kind.value, *list(vars(a).values())[1:]] for a in self.activities]
        values["replays"] = [list(vars(replay).values()) for replay in self.replays]
        values["phases"] = [[int(span.phase), span.start, span.end, span.step] for span in self.phases]
        values["host_calls"] = None if self.host_calls is None else self.host_calls.as_dict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trace:
        fields = dict(values)
        fields["mode"] = Mode(values["mode"])
        fields["activities"] = [Activity(Kind(row[0]), *row[1:]) for row in values["activities"]]
        fields["replays"] = [Replay(*row) for row in values["replays"]]
        fields["phases"] = [PhaseSpan(Phase(row[0]), *row[1:]) for row in values["phases"]]
        fields["window"] = tuple(values["window"])
        fields["host_calls"] = None if values["host_calls"] is None else HostCalls.from_dict(values["host_calls"])
        return cls(**fields)
