"""A captured graph of the virtual device.

Bound once, replayed often: nodes in a row without a fork are one segment, one operation of the queue. To everything outside, a
graph is one access of each range of bytes, because all its nodes come after its start and before its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.captured_graph import dot, refuse_freed, refuse_other_device
from runtime.errors import DeviceError
from runtime.race_detector import Access
from runtime.virtual_memory import Allocation
from runtime.virtual_queue import Operation, OperationQueue
from runtime.virtual_site import Origin
from runtime.virtual_work import Work

if TYPE_CHECKING:
    from runtime.virtual_device import VirtualDevice
    from runtime.virtual_stream import VirtualStream


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One piece of work and the nodes that must have run before it."""

    index: int
    origin: Origin
    work: Work
    dependencies: tuple[int, ...]

    @property
    def label(self) -> str:
        return self.origin.label

    @property
    def stream(self) -> str | None:
        return self.origin.stream

    @property
    def place(self) -> str:
        """For messages."""
        return str(self.origin)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Nodes in a row, run as one operation; `dependencies` are segments."""

    call: Callable[[], None]
    accesses: tuple[Access, ...]
    dependencies: tuple[int, ...]


class VirtualGraph:
    """Nodes with everything they need bound, ready to be replayed.

    Attributes:
        name: for reports.
        num_nodes: launches, products, copies and fills in it.
        reads: names of the arrays that some node only reads; constants are left out.
        writes: names of the arrays that some node stores to, and may read as well.
        accesses: the same as ranges of bytes; a range that is written stands for reads of it too.
        copies: kind and bytes of each copy in it.
        landings: page-locked destinations, poisoned at each launch when the device poisons.
    """

    def __init__(self, device: VirtualDevice, name: str, nodes: list[GraphNode]) -> None:
        self._device, self.name = device, name
        self._nodes = tuple(nodes)
        self._segments = _segments(self._nodes, device.queue)
        self._leaves = _leaves(self._segments)
        self._allocations = tuple(dict.fromkeys(allocation for node in nodes for allocation in node.work.allocations))
        every = [access for node in nodes for access in node.work.accesses]
        self.accesses = _merged(every)
        self.reads = frozenset(access.allocation.name for access in every if not access.writes)
        self.writes = frozenset(access.allocation.name for access in every if access.writes)
        self.copies = tuple(node.work.copy for node in nodes if node.work.copy is not None)
        landings = (node.work.landing for node in nodes if node.work.landing is not None)
        self.landings = tuple(landing for landing in landings if landing.name not in self.reads)

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    @property
    def num_operations(self) -> int:
        """Operations of the queue that one replay is: nodes in a row are one."""
        return len(self._segments)

    def launch(self, stream: VirtualStream) -> None:
        """Queue one replay on `stream`.

        Raises:
            UseAfterFree: an array of the graph was freed since the capture: the graph has its address, so it must be captured anew.
            Race: the replay is not ordered after something that touches the same bytes.
            DeviceError: inside a capture, or on a stream of another device.
        """
        refuse_other_device(self.name, self._device, stream)
        self._device.refuse_in_capture(f"launch of graph `{self.name}`")
        refuse_freed(self.name, self._allocations)
        stream.replay(self)

    def enqueue(self, queue: OperationQueue, origin: Origin, frontier: Iterable[Operation]) -> tuple[Operation, ...]:
        """Queue the segments after `frontier`; the operations that end them."""
        operations: list[Operation] = []
        for segment in self._segments:
            after = [operations[i] for i in segment.dependencies] if segment.dependencies else frontier
            operation = Operation(origin, segment.call, segment.accesses, after)
            queue.enqueue(operation)
            operations.append(operation)
        return tuple(operations[i] for i in self._leaves) if operations else tuple(frontier)

    def dot(self) -> str:
        """The graph in Graphviz's language."""
        return dot(self.name, self._nodes)

    def __repr__(self) -> str:
        return f"VirtualGraph({self.name}, {self.num_nodes} nodes in {len(self._segments)} segments)"


def _segments(nodes: tuple[GraphNode, ...], queue: OperationQueue) -> tuple[_Segment, ...]:
    """Join each node to its dependency when neither has another neighbour on that side."""
    dependents = [0] * len(nodes)
    for node in nodes:
        for dependency in node.dependencies:
            dependents[dependency] += 1
    rows: list[list[GraphNode]] = []
    dependencies: list[tuple[int, ...]] = []
    segment_of: list[int] = []
    for node in nodes:
        if len(node.dependencies) == 1 and dependents[node.dependencies[0]] == 1:
            segment = segment_of[node.dependencies[0]]
            rows[segment].append(node)
        else:
            segment = len(rows)
            rows.append([node])
            dependencies.append(tuple(dict.fromkeys(segment_of[i] for i in node.dependencies)))
        segment_of.append(segment)
    return tuple(
        _Segment(_run_in_order(row, queue), _merged(access for node in row for access in node.work.accesses), after)
        for row, after in zip(rows, dependencies, strict=True)
    )


def _run_in_order(row: list[GraphNode], queue: OperationQueue) -> Callable[[], None]:
    steps = [(node.work.call, node.origin) for node in row]

    def call() -> None:
        observe = queue.observe_node
        for step, origin in steps:
            began = 0 if observe is None else time.perf_counter_ns()
            try:
                step()
            except Exception as error:
                raise DeviceError(f"{origin}: {type(error).__name__}: {error}") from error
            if observe is not None:
                observe(origin, began, time.perf_counter_ns())

    return call


def _leaves(segments: tuple[_Segment, ...]) -> tuple[int, ...]:
    inner = {dependency for segment in segments for dependency in segment.dependencies}
    return tuple(i for i in range(len(segments)) if i not in inner)


def _merged(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """The fewest ranges that say the same: touching ranges of one kind joined, reads inside a written range dropped."""
    ranges: dict[tuple[Allocation, bool], list[tuple[int, int]]] = {}
    for access in accesses:
        if access.start < access.stop:
            ranges.setdefault((access.allocation, access.writes), []).append((access.start, access.stop))
    joined = {key: _joined(pairs) for key, pairs in ranges.items()}
    return tuple(
        Access(allocation, start, stop, writes)
        for (allocation, writes), pairs in joined.items()
        for start, stop in pairs
        if writes or not any(low <= start and stop <= high for low, high in joined.get((allocation, True), ()))
    )


def _joined(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for start, stop in sorted(pairs):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result
