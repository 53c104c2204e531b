"""Stream capture on the virtual device: record work with its dependencies, run none of it.

A second stream joins by waiting for an event recorded inside the capture, and must be joined back by the first. Races between the
branches are the same at every replay, so they are looked for here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from runtime.errors import DeviceError
from runtime.race_detector import Clock, RaceDetector, join
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


class VirtualCapture:
    """A capture in progress; `graph` afterwards.

    Whatever a real capture refuses (waiting, looking at events, host access, allocation, work on a stream outside) raises
    DeviceError at once and spoils the capture. However the capture ends, its streams work again.
    """

    def __init__(self, origin: VirtualStream, name: str) -> None:
        self._origin = origin
        self._device = origin.device
        self.name = name
        self._nodes: list[GraphNode] = []
        self._branches: dict[VirtualStream, _Branch] = {}
        self._events: dict[VirtualEvent, None] = {}
        self._spoiled: str | None = None
        self._graph: VirtualGraph | None = None
        # Inside a graph the host takes no part: a clock that knows nothing.
        self._detector = RaceDetector(self._device.report, {}) if self._device.detector is not None else None

    @property
    def graph(self) -> VirtualGraph:
        """The captured graph. DeviceError before the capture has ended well."""
        if self._graph is None:
            raise DeviceError(f"graph `{self.name}`: the capture has not ended, or has failed")
        return self._graph

    def __enter__(self) -> VirtualCapture:
        self._device.begin_capture(self)
        self._branches[self._origin] = _Branch((), {})
        self._origin.joined = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._device.end_capture()
        for stream in self._branches:
            stream.joined = None
        for event in self._events:
            event.captured = None
        if kind is not None:
            return
        if self._spoiled is not None:
            raise DeviceError(f"graph `{self.name}`: the capture was spoiled by {self._spoiled}")
        self._refuse_unjoined()
        self._graph = VirtualGraph(self._device, self.name, self._nodes)

    def spoil(self, reason: str) -> None:
        self._spoiled = self._spoiled or reason

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
            self._refuse(
                f"stream `{stream.name}` waits for event `{event.name}`, which was not recorded inside it; "
                "a replay would not wait: wait on the stream before each launch of the graph"
            )
            return
        branch = self._branches.get(stream)
        if branch is None:
            branch = self._branches[stream] = _Branch((), {})
            stream.joined = self
        branch.frontier = tuple(dict.fromkeys((*branch.frontier, *point.frontier)))
        join(branch.clock, point.clock)

    def _refuse(self, reason: str) -> None:
        self.spoil(reason)
        raise DeviceError(f"capture of graph `{self.name}`: {reason}")

    def _refuse_unjoined(self) -> None:
        """Every node must come before the end of the origin stream."""
        reached: set[int] = set()
        stack = list(self._branches[self._origin].frontier)
        while stack:
            index = stack.pop()
            if index not in reached:
                reached.add(index)
                stack.extend(self._nodes[index].dependencies)
        for node in self._nodes:
            if node.index not in reached:
                raise DeviceError(
                    f"graph `{self.name}`: unjoined fork: {node.origin} is not waited for by stream `{self._origin.name}`; "
                    f"record an event after it and let `{self._origin.name}` wait for it before the capture ends"
                )
