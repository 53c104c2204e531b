"""What graphs touch of the mirrored buffers: which buffers stand behind their names, what has to be checked, where they were."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from runtime.mirror import MirroredBuffer
from runtime.mirror_errors import MovedBufferError
from runtime.truth import Truth


class Declared(Protocol):
    """A graph that says which arrays it touches, by name. graphs.library.StepGraph is one."""

    @property
    def key(self) -> Hashable: ...

    @property
    def reads(self) -> frozenset[str]: ...

    @property
    def writes(self) -> frozenset[str]: ...


_MOVES = attrgetter("moves")


@dataclass(frozen=True)
class Uses:
    """The buffers that some work touches.

    reads: each with whether the same work also writes it. guarded: those it reads in memory that the host may write.
    """

    reads: tuple[tuple[MirroredBuffer, bool], ...]
    writes: tuple[MirroredBuffer, ...]
    guarded: tuple[MirroredBuffer, ...]

    def buffers(self) -> tuple[MirroredBuffer, ...]:
        return tuple(dict.fromkeys((*(buffer for buffer, _ in self.reads), *self.writes)))

    def changeable(self) -> Uses:
        """Those that can be refused although they have passed a check before. What only the device writes, in memory of its own,
        cannot: the host gets no newer copy of it, and uploads none."""
        reads = tuple((buffer, applies) for buffer, applies in self.reads if _host_matters(buffer))
        return Uses(reads, tuple(buffer for buffer in self.writes if _host_matters(buffer)), ())


def _host_matters(buffer: MirroredBuffer) -> bool:
    return buffer.truth is not Truth.DEVICE_EXACT or buffer.memory.mapped


@dataclass
class Adopted:
    """The buffers behind a graph's names, and the state of their addresses when it was captured.

    to_check: all of them until they have passed once, then those that can change (they pass or fail anew at every launch).
    """

    graph: Declared
    uses: Uses
    to_check: Uses
    buffers: tuple[MirroredBuffer, ...]
    moves: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Declared, uses: Uses) -> Adopted:
        buffers = uses.buffers()
        return cls(graph, uses, uses, buffers, tuple(map(_MOVES, buffers)), tuple(buffer.shape for buffer in buffers))

    def refuse_moved(self) -> None:
        """Raises MovedBufferError when a buffer is not where it was."""
        if tuple(map(_MOVES, self.buffers)) == self.moves:
            return
        for buffer, moves, shape in zip(self.buffers, self.moves, self.shapes, strict=True):
            if buffer.moves != moves:
                raise MovedBufferError(
                    f"{self.graph.key} was captured for another {buffer.name}: planned {list(shape)} at move {moves}, "
                    f"got {list(buffer.shape)} at move {buffer.moves}; capture the graph again"
                )
