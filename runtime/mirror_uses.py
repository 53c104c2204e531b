"""What graphs touch of the mirrored buffers: which buffers stand behind their names, what has to be checked, where they were."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from runtime.mirror import MirroredBuffer
from runtime.mirror_errors import MovedBufferError
from runtime.mirror_tag import Tag
from runtime.truth import Truth


class Declared(Protocol):
    """A graph that says which arrays it touches, by name. graphs.library.StepGraph is one."""

    @property
    def key(self) -> Hashable: ...

    @property
    def reads(self) -> frozenset[str]: ...

    @property
    def writes(self) -> frozenset[str]: ...


@dataclass(frozen=True)
class Uses:
    """The buffers that some work touches.

    reads: each with whether the same work also writes it. guarded: those it reads in memory that the host may write.
    """

    reads: tuple[tuple[MirroredBuffer, bool], ...]
    writes: tuple[MirroredBuffer, ...]
    guarded: tuple[MirroredBuffer, ...]

    @cached_property
    def counted(self) -> tuple[Tag, ...]:
        """Tags of those that it writes, nobody else does and no poison waits for: of them a launch counts the version, no more.
        They are nearly all that a step writes."""
        return tuple(buffer.tag for buffer in self.writes if not _told(buffer))

    @cached_property
    def told(self) -> tuple[MirroredBuffer, ...]:
        """The others that it writes."""
        return tuple(filter(_told, self.writes))

    def buffers(self) -> tuple[MirroredBuffer, ...]:
        return tuple(dict.fromkeys((*(buffer for buffer, _ in self.reads), *self.writes)))

    def changeable(self) -> Uses:
        """Those that can be refused although they have passed a check before. What only the device writes, in memory of its own,
        cannot: the host gets no newer copy of it, and uploads none."""
        reads = tuple((buffer, applies) for buffer, applies in self.reads if _host_matters(buffer))
        return Uses(reads, tuple(buffer for buffer in self.writes if _host_matters(buffer)), ())


def _told(buffer: MirroredBuffer) -> bool:
    return _host_matters(buffer) or buffer.poison


def _host_matters(buffer: MirroredBuffer) -> bool:
    return buffer.truth is not Truth.DEVICE_EXACT or buffer.memory.mapped


@dataclass
class Adopted:
    """The buffers behind a graph's names, and the state of their addresses when it was captured.

    to_check: all of them until they have passed once, then those that can change (they pass or fail anew at every launch).
    resizes: that the table had seen then.
    """

    graph: Declared
    uses: Uses
    to_check: Uses
    buffers: tuple[MirroredBuffer, ...]
    moves: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    resizes: int

    @classmethod
    def of(cls, graph: Declared, uses: Uses, resizes: int) -> Adopted:
        buffers = uses.buffers()
        moves, shapes = tuple(buffer.moves for buffer in buffers), tuple(buffer.shape for buffer in buffers)
        return cls(graph, uses, uses, buffers, moves, shapes, resizes)

    def refuse_moved(self, resizes: int) -> None:
        """Raises MovedBufferError when a buffer is not where it was; `resizes` of the table have moved one each."""
        if resizes == self.resizes:
            return
        for buffer, moves, shape in zip(self.buffers, self.moves, self.shapes, strict=True):
            if buffer.moves != moves:
                raise MovedBufferError(
                    f"{self.graph.key} was captured for another {buffer.name}: planned {list(shape)} at move {moves}, "
                    f"got {list(buffer.shape)} at move {buffer.moves}; capture the graph again"
                )
