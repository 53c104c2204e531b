"""Streams and events of the virtual device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from graphs.launch import Array, Grid
from kernels.lang import Kernel
from runtime.errors import DeviceError
from runtime.race_detector import Access, Clock, join
from runtime.side_stream import SideStream
from runtime.virtual_capture import CapturedPoint, VirtualCapture
from runtime.virtual_queue import Operation
from runtime.virtual_site import Origin
from runtime.virtual_work import Work, bind_copy, bind_fill, bind_launch, bind_product

if TYPE_CHECKING:
    from runtime.virtual_device import VirtualDevice
    from runtime.virtual_graph import VirtualGraph


class VirtualEvent:
    """A point in a stream: everything enqueued there, or waited for there, before `record`."""

    def __init__(self, device: VirtualDevice, name: str) -> None:
        self.device, self.name = device, name
        self.clock: Clock = {}
        self.frontier: tuple[Operation, ...] | None = None
        self.captured: CapturedPoint | None = None

    @property
    def recorded(self) -> bool:
        """Does it stand for a point outside captures?"""
        return self.frontier is not None

    def synchronize(self) -> None:
        """Block the host until the recorded point has been reached. DeviceError: never recorded, or a capture is running."""
        frontier = self._recorded("event.synchronize")
        self.device.counters.event_synchronizes += 1
        self.device.queue.run(frontier)
        join(self.device.host_clock, self.clock)

    def query(self) -> bool:
        """Has the recorded point been reached? True orders the host after it. DeviceError as in `synchronize`."""
        frontier = self._recorded("event.query")
        self.device.counters.event_queries += 1
        self.device.queue.progress()
        reached = all(operation.done for operation in frontier)
        if reached:
            join(self.device.host_clock, self.clock)
        return reached

    def _recorded(self, call: str) -> tuple[Operation, ...]:
        self.device.refuse_in_capture(f"{call} of event `{self.name}`")
        if self.frontier is None:
            raise DeviceError(f"{call}: event `{self.name}` was never recorded, so it can never fire; record it on a stream first")
        return self.frontier


class VirtualStream(SideStream):
    """Work in order. What is enqueued later runs after `frontier`, the operations at the stream's present end.

    Attributes:
        clock: what is known to have run before the next operation; grows by waits.
        joined: the capture that this stream takes part in, or None.
    """

    def __init__(self, device: VirtualDevice, name: str, index: int) -> None:
        self.device, self.name, self.index = device, name, index
        self.clock: Clock = {}
        self.frontier: tuple[Operation, ...] = ()
        self.joined: VirtualCapture | None = None

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        """Queue one kernel. Errors: see runtime.virtual_work.bind_launch, and Race."""
        self._submit(bind_launch(self.device, self.device.executor, kernel, grid, block, args))

    def prepare_launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> Callable[[], None]:
        """A call that queues this launch each time."""
        return partial(self.launch, kernel, grid, block, *args)

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        """Queue out[i] = x[i] @ weight.T for i < rows[0]; the other rows of out stay as they are."""
        self._submit(bind_product(self.device, out, x, weight, rows))

    def copy(self, dst: Array, src: Array) -> None:
        """Queue dst[...] = src."""
        self._submit(bind_copy(self.device, dst, src))

    def prepare_copy(self, dst: Array, src: Array) -> Callable[[], None]:
        """A call that queues dst[...] = src each time."""
        return partial(self.copy, dst, src)

    def fill(self, dst: Array, value: int | float) -> None:
        """Queue dst[...] = value."""
        self._submit(bind_fill(self.device, dst, value))

    def record(self, event: VirtualEvent) -> None:
        """Let `event` stand for the present end of this stream, waits without work after them included."""
        self._check_event(event)
        if self.joined is not None:
            self.joined.record(self, event)
            return
        self.device.refuse_in_capture(f"record on stream `{self.name}`, which takes no part in it")
        self.device.queue.progress()
        event.captured = None
        event.frontier, event.clock = self.frontier, dict(self.clock)

    def wait(self, event: VirtualEvent) -> None:
        """Let everything enqueued later on this stream run after `event`. Draws the stream into a capture of the event."""
        self._check_event(event)
        if self.device.capturing is not None:
            self.device.capturing.wait(self, event)
            return
        if event.frontier is None:
            raise DeviceError(
                f"stream `{self.name}` waits for event `{event.name}`, which was never recorded: nothing would order it"
            )
        self.device.queue.progress()
        self.frontier = tuple({operation: None for operation in (*self.frontier, *event.frontier) if not operation.done})
        join(self.clock, event.clock)

    def synchronize(self) -> None:
        """Block the host until everything on this stream has run. Counted by the stream's name."""
        self.device.refuse_in_capture(f"synchronize of stream `{self.name}`")
        counters = self.device.counters
        counters.stream_synchronizes += 1
        counters.synchronizes_by_stream[self.name] += 1
        self.device.queue.run(self.frontier)
        join(self.device.host_clock, self.clock)

    def query(self) -> bool:
        """Has everything on this stream run? True orders the host after it."""
        self.device.refuse_in_capture(f"query of stream `{self.name}`")
        self.device.queue.progress()
        reached = all(operation.done for operation in self.frontier)
        if reached:
            join(self.device.host_clock, self.clock)
        return reached

    def capture(self, name: str = "graph") -> VirtualCapture:
        """A context in which everything put on this stream is recorded instead of run. Its `.graph` is the result."""
        return VirtualCapture(self, name)

    def replay(self, graph: VirtualGraph) -> None:
        """Queue every node of `graph`. Called by graph.launch."""
        device = self.device
        origin = device.origin(f"graph {graph.name}", self.name)
        self._admit(origin, graph.accesses)
        if device.poison:
            device.poison_landings(graph.landings)
        device.counters.graph_launches += 1
        for kind, nbytes in graph.copies:
            device.count_copy(kind, nbytes)
        self.frontier = graph.enqueue(device.queue, origin, self.frontier)

    def _submit(self, work: Work) -> None:
        device = self.device
        if self.joined is not None:
            self.joined.add(self, work)
            return
        device.refuse_in_capture(f"{work.label} on stream `{self.name}`, which takes no part in it")
        origin = device.origin(work.label, self.name)
        self._admit(origin, work.accesses)
        if work.copy is None:
            device.counters.launches += 1
        else:
            device.count_copy(*work.copy)
        if device.poison and work.landing is not None:
            device.poison_landings((work.landing,))
        operation = Operation(origin, work.call, work.accesses, self.frontier)
        device.queue.enqueue(operation)
        self.frontier = (operation,)

    def _admit(self, origin: Origin, accesses: tuple[Access, ...]) -> None:
        """Tick, and check the accesses: whatever the host knows has happened before anything it enqueues."""
        detector = self.device.detector
        if detector is not None:
            clock = self.clock
            join(clock, self.device.host_clock)
            clock[self.index] = clock.get(self.index, 0) + 1
            detector.admit(origin, accesses, clock, self.index)

    def _check_event(self, event: VirtualEvent) -> None:
        if not isinstance(event, VirtualEvent) or event.device is not self.device:
            raise DeviceError(f"stream `{self.name}`: {event!r} is no event of this device")
