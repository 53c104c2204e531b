"""Stream capture on a CUDA device: bind work with its dependencies first, hand all of it to CUDA at the end.

A second stream joins by waiting for an event recorded inside the capture, and must be joined back by the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import cupy

from graphs.capture import Action, CaptureFailed, capture
from runtime.cuda_graph import CudaGraph, CudaNode
from runtime.cuda_work import CudaWork
from runtime.errors import DeviceError

if TYPE_CHECKING:
    from runtime.cuda_stream import CudaEvent, CudaStream


@dataclass(frozen=True, slots=True)
class CapturedPoint:
    """What an event recorded inside a capture stands for. `marker` is CUDA's event: a capture would spoil the user's own."""

    capture: CudaCapture
    frontier: tuple[int, ...]
    marker: cupy.cuda.Event


class CudaCapture:
    """A capture in progress; `graph` afterwards.

    Whatever a capture refuses (waiting, looking at events, host access, allocation, work on a stream outside) raises DeviceError
    at once and spoils the capture. However it ends, its streams work again.
    """

    def __init__(self, origin: CudaStream, name: str) -> None:
        self._origin = origin
        self._device = origin.device
        self.name = name
        self._nodes: list[CudaNode] = []
        self._actions: list[Action] = []
        self._branches: dict[CudaStream, tuple[int, ...]] = {}
        self._events: dict[CudaEvent, None] = {}
        self._spoiled: str | None = None
        self._graph: CudaGraph | None = None

    @property
    def graph(self) -> CudaGraph:
        """The captured graph. DeviceError before the capture has ended well."""
        if self._graph is None:
            raise DeviceError(f"graph `{self.name}`: the capture has not ended, or has failed")
        return self._graph

    def __enter__(self) -> CudaCapture:
        self._device.begin_capture(self)
        self._branches[self._origin] = ()
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
        try:
            executable = capture(self._origin.stream, self._actions)
        except CaptureFailed as failure:
            raise DeviceError(
                f"capture of graph `{self.name}` failed at {failure}; set graphs.mode = eager to run without graphs"
            ) from failure
        self._graph = CudaGraph(self._device, self.name, tuple(self._nodes), executable)

    def spoil(self, reason: str) -> None:
        self._spoiled = self._spoiled or reason

    def add(self, stream: CudaStream, work: CudaWork) -> None:
        """Record `work` at the end of `stream`."""
        index = len(self._nodes)
        before = self._before(stream)
        self._nodes.append(CudaNode(index, work, stream.name, self._branches[stream], work.starts_early(before)))
        issue = partial(work.issue_after, before)
        self._actions.append(Action(f"node {index}, {work.label} on stream `{stream.name}`", issue))
        self._branches[stream] = (index,)

    def _before(self, stream: CudaStream) -> list[CudaWork]:
        """The last pieces of work on a stream, newest last, as far as each is the only one that the next depends on."""
        found: list[CudaWork] = []
        ends = self._branches[stream]
        while len(ends) == 1 and len(found) < 2 and self._nodes[ends[0]].stream == stream.name:
            found.insert(0, self._nodes[ends[0]].work)
            ends = self._nodes[ends[0]].dependencies
        return found

    def record(self, stream: CudaStream, event: CudaEvent) -> None:
        marker, queue = cupy.cuda.Event(disable_timing=True), stream.stream
        event.captured = CapturedPoint(self, self._branches[stream], marker)
        event.recorded = False
        self._events[event] = None
        self._actions.append(Action(f"record of event `{event.name}`", lambda: marker.record(queue)))

    def wait(self, stream: CudaStream, event: CudaEvent) -> None:
        """Order `stream` after `event`; a stream that was outside joins the capture."""
        point = event.captured
        if point is None or point.capture is not self:
            reason = (
                f"stream `{stream.name}` waits for event `{event.name}`, which was not recorded inside it; "
                "a replay would not wait: wait on the stream before each launch of the graph"
            )
            self.spoil(reason)
            raise DeviceError(f"capture of graph `{self.name}`: {reason}")
        stream.joined = self
        self._branches[stream] = tuple(dict.fromkeys((*self._branches.get(stream, ()), *point.frontier)))
        marker, queue = point.marker, stream.stream
        self._actions.append(Action(f"wait for event `{event.name}`", lambda: queue.wait_event(marker)))

    def _refuse_unjoined(self) -> None:
        """Every node must come before the end of the origin stream."""
        reached: set[int] = set()
        stack = list(self._branches[self._origin])
        while stack:
            index = stack.pop()
            if index not in reached:
                reached.add(index)
                stack.extend(self._nodes[index].dependencies)
        for node in self._nodes:
            if node.index not in reached:
                raise DeviceError(
                    f"graph `{self.name}`: unjoined fork: {node.work.label} on stream `{node.stream}` is not waited for by stream "
                    f"`{self._origin.name}`; record an event after it and let `{self._origin.name}` wait for it "
                    "before the capture ends"
                )
