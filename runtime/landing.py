"""Device to host: a copy in flight whose bytes cannot be had without waiting for its event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from graphs.launch import Array, Event
from runtime.device import Device, HostArray, Stream
from runtime.mirror_errors import OutcomeError, StagingBusyError
from runtime.repeated_copies import RepeatedCopies


class PendingRead:
    """A download in flight: the event travels with the bytes.

    Attributes:
        name: what is read. version: which version of it, or which step. event: recorded behind the copy, or behind the producer
        where host and device share the memory. on_take: told of version and array once the bytes have arrived.
    """

    def __init__(self, name: str, version: int, event: Event, source: HostArray) -> None:
        self.name, self.version, self.event = name, version, event
        self.on_take: Callable[[int, npt.NDArray[Any]], None] | None = None
        self._source: HostArray | None = source

    @property
    def taken(self) -> bool:
        return self._source is None

    def take(self) -> npt.NDArray[Any]:
        """Block the host until the bytes have arrived; an array of the caller's own.

        Raises OutcomeError the second time: the block may hold another step's values by then.
        """
        if self._source is None:
            raise OutcomeError(f"{self.name} version {self.version} was read before; keep the array of the first read")
        self.event.synchronize()
        values = self._source.read()
        self._source = None
        if self.on_take is not None:
            self.on_take(self.version, values)
        return values


class LandingRing:
    """Page-locked blocks that copies from the device land in. A block is used again once its read was taken.

    Args:
        name, shape, dtype: of one block.
        depth: downloads that may wait to be taken.
    """

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], depth: int) -> None:
        self.name, self.depth = name, depth
        self._device = device
        self._memory = device.pinned(name, (depth, *shape), dtype)
        self._blocks = blocks_of(self._memory)
        self._events = [device.event(f"{name}_ready_{i}") for i in range(depth)]
        self._copies = RepeatedCopies()
        self._reads: list[PendingRead | None] = [None] * depth
        self._count = 0

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def receive(self, stream: Stream, source: Array, version: int) -> PendingRead:
        """Queue the copy of `source` into the next block.

        Raises StagingBusyError when the read that the block holds was not taken.
        """
        i = self._count % self.depth
        waiting = self._reads[i]
        if waiting is not None and not waiting.taken:
            raise StagingBusyError(
                f"{self.name}: the read of version {waiting.version} was not taken, and depth = {self.depth} reads may wait; "
                f"take() it first"
            )
        self._copies.queue(stream, self._blocks[i], source)
        stream.record(self._events[i])
        pending = self._reads[i] = PendingRead(self.name, version, self._events[i], self._blocks[i])
        self._count += 1
        return pending

    def free(self) -> None:
        self._device.free(self._memory)


def blocks_of(memory: HostArray) -> list[HostArray]:
    """The views [*shape] of [depth, *shape] memory that the host may touch."""
    shape = memory.shape[1:]
    # A view of host-visible memory is host-visible; the Array protocol cannot say so.
    return [cast(HostArray, memory[i : i + 1].reshape(shape)) for i in range(memory.shape[0])]
