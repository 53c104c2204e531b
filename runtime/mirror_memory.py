"""Where the two copies of a mirrored buffer live. The tags are MirroredBuffer's business; bytes and events are the business here.

TwinMemory    host memory and device memory, copied through page-locked blocks (policy discrete; packs and diffed buffers always)
MappedMemory  one page-locked allocation seen by both sides (policy integrated): nothing is copied, events guard the order
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from graphs.launch import Array, Event
from runtime.device import Device, HostArray, Stream
from runtime.landing import LandingRing, PendingRead
from runtime.mirror_errors import StagingBusyError
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_values import HostIndex
from runtime.staging import StagingRing


class Memory(Protocol):
    """Moves the bytes of one mirrored buffer; knows nothing of versions."""

    mapped: bool  # both copies are the same memory

    @property
    def array(self) -> Array:
        """The device copy, for recorders."""
        ...

    @property
    def nbytes(self) -> int:
        """All that the buffer holds on both sides, blocks of its rings included."""
        ...

    def write(self, values: npt.NDArray[Any], index: HostIndex) -> None:
        """Change the host copy."""
        ...

    def read(self) -> npt.NDArray[Any]:
        """The host copy, read-only."""
        ...

    def upload(self, stream: Stream) -> Event:
        """Queue what makes the host copy visible to `stream`; the event behind it."""
        ...

    def download(self, stream: Stream, version: int) -> PendingRead:
        """Queue what makes the device copy visible to the host."""
        ...

    def consumed(self, stream: Stream) -> None:
        """Work that reads the device copy was queued on `stream`."""
        ...

    def landed(self, values: npt.NDArray[Any]) -> None:
        """A download arrived: it becomes the host copy."""
        ...

    def poison_host(self) -> None:
        """Fill the host copy with what nobody should ever read."""
        ...

    def free(self) -> None: ...


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view: npt.NDArray[Any] = values.view()
    view.flags.writeable = False
    return view


def poison(values: npt.NDArray[Any]) -> None:
    """NaN, or bytes 0xA5: as int32 negative, and of the negative numbers only -1 means anything here."""
    values.fill(np.nan if values.dtype.kind == "f" else np.frombuffer(b"\xa5" * values.itemsize, values.dtype)[0])


class TwinMemory:
    """A NumPy array on the host, an array on the device.

    The host array may be written at any time: a copy never reads it, it reads the page-locked block that it was copied into.
    """

    mapped = False

    def __init__(
        self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], steps_in_flight: int, policy: MirrorPolicy
    ) -> None:
        self._device, self._name, self._steps_in_flight, self._policy = device, name, steps_in_flight, policy
        self._host = np.zeros(shape, dtype)
        self.array: Array = device.array(name, shape, dtype)
        self._uploads: StagingRing | None = None
        self._landings: LandingRing | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        rings = sum(ring.nbytes for ring in (self._uploads, self._landings) if ring is not None)
        return self.array.nbytes + self._host.nbytes + rings

    def write(self, values: npt.NDArray[Any], index: HostIndex) -> None:
        self._host[index] = values

    def read(self) -> npt.NDArray[Any]:
        return read_only(self._host)

    def upload(self, stream: Stream) -> Event:
        """Raises StagingBusyError when the device may still read the block that is next."""
        shape, dtype, steps = self._host.shape, self._host.dtype, self._steps_in_flight
        if self._uploads is None:
            ring = f"{self._name}_upload"
            self._uploads = StagingRing(
                self._device, ring, shape, dtype, depth=steps + 1, steps_in_flight=steps, policy=self._policy
            )
        step = self._count
        self._uploads.next(step).write(self._host)
        event = self._uploads.submit(step, stream, self.array)
        self._count += 1
        return event

    def download(self, stream: Stream, version: int) -> PendingRead:
        """Raises StagingBusyError when every block holds a read that nobody took."""
        if self._landings is None:
            name, host = f"{self._name}_download", self._host
            self._landings = LandingRing(self._device, name, host.shape, host.dtype, self._steps_in_flight)
        return self._landings.receive(stream, self.array, version)

    def consumed(self, stream: Stream) -> None:
        """Nothing to guard: kernels read device memory, and uploads are ordered on their stream."""

    def landed(self, values: npt.NDArray[Any]) -> None:
        self._host[...] = values

    def poison_host(self) -> None:
        poison(self._host)

    def free(self) -> None:
        self._device.free(self.array)
        for ring in (self._uploads, self._landings):
            if ring is not None:
                ring.free()


class MappedMemory:
    """One allocation. A host write needs the event of the last consumer, a host read that of the producer."""

    mapped = True

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._device, self._name = device, name
        self.array: HostArray = device.mapped(name, shape, dtype)
        self.array.write(np.zeros(shape, dtype))
        self._visible = device.event(f"{name}_visible")
        self._consumed = device.event(f"{name}_consumed")
        self._guarded = False

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def write(self, values: npt.NDArray[Any], index: HostIndex) -> None:
        if self._guarded and not self._consumed.query():
            raise StagingBusyError(
                f"{self._name}: host and device share this memory, and queued work may still read it (event "
                f"{self._consumed.name}); wait for that step, or stage the value in a pack, whose blocks rotate"
            )
        self.array.write(values, index)

    def read(self) -> npt.NDArray[Any]:
        return read_only(self.array.read())

    def upload(self, stream: Stream) -> Event:
        """Copies nothing: the event marks from where on other streams may rely on the value."""
        stream.record(self._visible)
        return self._visible

    def download(self, stream: Stream, version: int) -> PendingRead:
        """Copies nothing: the event is the producer's."""
        event = self._device.event(f"{self._name}_produced")
        stream.record(event)
        return PendingRead(self._name, version, event, self.array)

    def consumed(self, stream: Stream) -> None:
        stream.record(self._consumed)
        self._guarded = True

    def landed(self, values: npt.NDArray[Any]) -> None:
        """The host's copy is the device's."""

    def poison_host(self) -> None:
        """The host's copy is the device's: there is nothing to poison."""

    def free(self) -> None:
        self._device.free(self.array)
