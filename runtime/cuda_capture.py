"""Stream capture on a CUDA device: bind work with its dependencies first, hand all of it to CUDA at the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import cupy

from graphs.capture import Action, CaptureFailed, capture
from runtime.cuda_graph import CudaGraph, CudaNode
from runtime.cuda_room import no_room, out_of_memory
from runtime.cuda_work import CudaWork
from runtime.errors import DeviceError
from runtime.stream_capture import StreamCapture

if TYPE_CHECKING:
    from runtime.cuda_stream import CudaEvent, CudaStream


@dataclass(frozen=True, slots=True)
class CapturedPoint:
    """What an event recorded inside a capture stands for. `marker` is CUDA's event: a capture would spoil the user's own."""

    capture: CudaCapture
    frontier: tuple[int, ...]
    marker: cupy.cuda.Event


class CudaCapture(StreamCapture[CudaGraph, tuple[int, ...], CudaNode]):
    """A capture in progress; `graph` afterwards."""

    def __init__(self, origin: CudaStream, name: str) -> None:
        super().__init__(origin, name)
        self._actions: list[Action] = []

    def _first_branch(self) -> tuple[int, ...]:
        return ()

    def _ends(self, stream: CudaStream) -> tuple[int, ...]:
        return self._branches[stream]

    def _finished(self) -> CudaGraph:
        try:
            executable = capture(self._origin.stream, self._actions)
        except CaptureFailed as failure:
            if out_of_memory(failure):
                raise DeviceError(
                    f"capture of graph `{self.name}`, {len(self._nodes)} nodes, ran out of memory: {no_room(self._device.name)}; "
                    "graphs.mode = eager runs without graphs, and slowly"
                ) from failure
            raise DeviceError(
                f"capture of graph `{self.name}` failed at {failure}; set graphs.mode = eager to run without graphs"
            ) from failure
        return CudaGraph(self._device, self.name, tuple(self._nodes), executable)

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
            self._refuse_foreign(stream, event)
        stream.joined = self
        self._branches[stream] = tuple(dict.fromkeys((*self._branches.get(stream, ()), *point.frontier)))
        marker, queue = point.marker, stream.stream
        self._actions.append(Action(f"wait for event `{event.name}`", lambda: queue.wait_event(marker)))
