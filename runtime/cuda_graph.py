"""A captured CUDA graph, with everything it touches: CUDA and CuPy keep none of it alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.captured_graph import dot, refuse_freed, refuse_other_device
from runtime.cuda_work import CudaWork

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice
    from runtime.cuda_stream import CudaStream


@dataclass(frozen=True, slots=True)
class CudaNode:
    """One piece of work, the stream it was recorded on, the nodes that run before it, and whether it may start before they end."""

    index: int
    work: CudaWork
    stream: str
    dependencies: tuple[int, ...]
    early: bool

    @property
    def label(self) -> str:
        return self.work.label

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.label} on stream `{self.stream}`"


class CudaGraph:
    """Nodes with everything they need bound, ready to be replayed.

    Attributes:
        name: for reports.
        num_nodes: launches, products, copies and fills in it.
        reads: names of the arrays that some node only reads; constants are left out.
        writes: names of the arrays that some node stores to, and may read as well.
        copies: kind and bytes of each copy in it.
        executable: cupy.cuda.Graph.
    """

    def __init__(self, device: CudaDevice, name: str, nodes: tuple[CudaNode, ...], executable: Any) -> None:
        self._device, self.name, self._nodes, self.executable = device, name, nodes, executable
        reads = {allocation for node in nodes for allocation in node.work.reads}
        writes = {allocation for node in nodes for allocation in node.work.writes}
        self._allocations = tuple(reads | writes)
        self._frees = device.frees
        self.reads = frozenset(allocation.name for allocation in reads if allocation.kind != "constant")
        self.writes = frozenset(allocation.name for allocation in writes)
        self.copies = tuple(node.work.copy for node in nodes if node.work.copy is not None)

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    @property
    def num_early(self) -> int:
        """Nodes that may start before the one ahead of them has ended."""
        return sum(node.early for node in self._nodes)

    def launch(self, stream: CudaStream) -> None:
        """Queue one replay on `stream`.

        Raises:
            UseAfterFree: an array of the graph was freed since the capture: the graph has its address, so it must be captured anew.
            DeviceError: inside a capture, or on a stream of another device.
        """
        refuse_other_device(self.name, self._device, stream)
        self._device.refuse_in_capture(f"launch of graph `{self.name}`")
        if self._frees != self._device.frees:
            # Looked at only when something was freed since the last look: a step has hundreds of arrays.
            refuse_freed(self.name, self._allocations)
            self._frees = self._device.frees
        stream.replay(self)

    def dot(self) -> str:
        """The graph in Graphviz's language."""
        return dot(self.name, self._nodes)

    def __repr__(self) -> str:
        return f"CudaGraph({self.name}, {self.num_nodes} nodes)"
