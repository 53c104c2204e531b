"""Stream capture on the virtual device: record work with its dependencies, run none of it.

Races between the branches are the same at every replay, so they are looked for here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.race_detector import Clock, RaceDetector, join
from runtime.stream_capture import StreamCapture
from runtime.virtual_graph import GraphNode, VirtualGraph
from runtime.virtual_work import Work

if TYPE_CHECKING:
    from runtime.virtual_stream import VirtualEvent, VirtualStream


@dataclass(frozen=True, slots=True)
class CapturedPoint:
    """What an event recorded inside a capture stands for: the nodes at the end of its stream, and what they know."""

    capture: VirtualCapture
    frontier: tuple[int, ...]
    clock: Clock


@dataclass(slots=True)
class _Branch:
    """The end of one stream inside the capture."""

    frontier: tuple[int, ...]
    clock: Clock


class VirtualCapture(StreamCapture[VirtualGraph, _Branch, GraphNode]):
    """A capture in progress; `graph` afterwards. It refuses what a real one does."""

    def __init__(self, origin: VirtualStream, name: str) -> None:
        super().__init__(origin, name)
        # Inside a graph the host takes no part: a clock that knows nothing.
        self._detector = RaceDetector(self._device.report, {}) if self._device.detector is not None else None

    def _first_branch(self) -> _Branch:
        return _Branch((), {})

    def _ends(self, stream: VirtualStream) -> tuple[int, ...]:
        return self._branches[stream].frontier

    def _finished(self) -> VirtualGraph:
        return VirtualGraph(self._device, self.name, self._nodes)

    def add(self, stream: VirtualStream, work: Work) -> None:
        """Record `work` at the end of `stream`."""
        branch = self._branches[stream]
        origin = self._device.origin(work.label, stream.name)
        if self._detector is not None:
            branch.clock[stream.index] = branch.clock.get(stream.index, 0) + 1
            self._detector.admit(origin, work.accesses, branch.clock, stream.index)
        self._nodes.append(GraphNode(len(self._nodes), origin, work, branch.frontier))
        branch.frontier = (len(self._nodes) - 1,)

    def record(self, stream: VirtualStream, event: VirtualEvent) -> None:
        branch = self._branches[stream]
        event.captured = CapturedPoint(self, branch.frontier, dict(branch.clock))
        event.frontier, event.clock = None, {}
        self._events[event] = None

    def wait(self, stream: VirtualStream, event: VirtualEvent) -> None:
        """Order `stream` after `event`; a stream that was outside joins the capture."""
        point = event.captured
        if point is None or point.capture is not self:
            self._refuse_foreign(stream, event)
        branch = self._branches.get(stream)
        if branch is None:
            branch = self._branches[stream] = _Branch((), {})
            stream.joined = self
        branch.frontier = tuple(dict.fromkeys((*branch.frontier, *point.frontier)))
        join(branch.clock, point.clock)
