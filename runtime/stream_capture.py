"""What captures of every device share: which streams are in one, what spoils it, and that every fork comes back.

A second stream joins by waiting for an event recorded inside the capture, and must be joined back by the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from runtime.errors import DeviceError


class CapturedNode(Protocol):
    """One piece of work of a capture."""

    @property
    def index(self) -> int: ...

    @property
    def dependencies(self) -> tuple[int, ...]:
        """Indices of the nodes that run before it."""

    @property
    def place(self) -> str:
        """The work and its stream, for messages."""


G = TypeVar("G")
B = TypeVar("B")
N = TypeVar("N", bound=CapturedNode)
S = TypeVar("S", bound="StreamCapture[Any, Any, Any]")


class StreamCapture(Generic[G, B, N]):
    """A capture in progress; `graph` afterwards.

    Whatever a capture refuses (waiting, looking at events, host access, allocation, work on a stream outside) raises DeviceError
    at once and spoils the capture. However it ends, its streams work again.

    G: the graph. B: what is known of the end of a stream inside the capture. N: a node.
    """

    def __init__(self, origin: Any, name: str) -> None:
        self._origin, self._device, self.name = origin, origin.device, name
        self._nodes: list[N] = []
        self._branches: dict[Any, B] = {}
        self._events: dict[Any, None] = {}
        self._spoiled: str | None = None
        self._graph: G | None = None

    def _first_branch(self) -> B:
        """The origin stream before any work."""
        raise NotImplementedError

    def _ends(self, stream: Any) -> Sequence[int]:
        """The nodes at the end of a stream."""
        raise NotImplementedError

    def _finished(self) -> G:
        """The graph of all nodes. Raises DeviceError."""
        raise NotImplementedError

    @property
    def graph(self) -> G:
        """The captured graph. DeviceError before the capture has ended well."""
        if self._graph is None:
            raise DeviceError(f"graph `{self.name}`: the capture has not ended, or has failed")
        return self._graph

    def __enter__(self: S) -> S:
        self._device.begin_capture(self)
        self._branches[self._origin] = self._first_branch()
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
        self._graph = self._finished()

    def spoil(self, reason: str) -> None:
        self._spoiled = self._spoiled or reason

    def _refuse_foreign(self, stream: Any, event: Any) -> NoReturn:
        """A wait for an event that was not recorded in this capture."""
        reason = (
            f"stream `{stream.name}` waits for event `{event.name}`, which was not recorded inside it; "
            "a replay would not wait: wait on the stream before each launch of the graph"
        )
        self.spoil(reason)
        raise DeviceError(f"capture of graph `{self.name}`: {reason}")

    def _refuse_unjoined(self) -> None:
        """Every node must come before the end of the origin stream."""
        reached: set[int] = set()
        stack = list(self._ends(self._origin))
        while stack:
            index = stack.pop()
            if index not in reached:
                reached.add(index)
                stack.extend(self._nodes[index].dependencies)
        for node in self._nodes:
            if node.index not in reached:
                raise DeviceError(
                    f"graph `{self.name}`: unjoined fork: {node.place} is not waited for by stream `{self._origin.name}`; "
                    f"record an event after it and let `{self._origin.name}` wait for it before the capture ends"
                )
