"""MirrorPack: several small host-written buffers in one block, so that one copy a step moves them all."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from graphs.launch import Array, Event
from runtime.device import Device, Stream
from runtime.landing import PendingRead
from runtime.mirror import MirroredBuffer
from runtime.mirror_counters import MirrorCounters
from runtime.mirror_errors import MirrorError
from runtime.mirror_memory import read_only
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_values import HostIndex
from runtime.staging import StagingRing
from runtime.truth import Truth


class _FieldMemory:
    """Views into the two copies of a pack. Fields do not move alone."""

    mapped = False

    def __init__(self, pack: str, host: npt.NDArray[Any], array: Array) -> None:
        self._pack, self._host, self.array = pack, host, array
        self.nbytes = 0  # the pack's

    def write(self, values: npt.NDArray[Any], index: HostIndex) -> None:
        self._host[index] = values

    def read(self) -> npt.NDArray[Any]:
        return read_only(self._host)

    def upload(self, stream: Stream) -> NoReturn:
        raise MirrorError(f"a field of the pack {self._pack} does not move alone; call upload(step, stream) of the pack")

    def download(self, stream: Stream, version: int) -> PendingRead:
        raise MirrorError(f"a field of the pack {self._pack} is written by the host alone; read_host() has it")

    def consumed(self, stream: Stream) -> None:
        """Kernels read device memory that only uploads on the same stream write."""

    def landed(self, values: npt.NDArray[Any]) -> None:
        """Never: fields are not downloaded."""

    def poison_host(self) -> None:
        """Never: the device does not overtake what only the host writes."""

    def free(self) -> None:
        """The pack's."""


class MirrorPack:
    """int32 fields laid out back to back in one allocation, each with its own name, view and tag; HOST_EXACT all of them.

    Graphs name the pack in their reads, because views keep the name of their array.

    A field whose length differs from step to step stands last: an upload can then leave out its unused rows.

    Attributes:
        array: the whole block in device memory, int32 [words].
        fields: the buffers by name, in layout order.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        fields: Mapping[str, tuple[int, ...]],
        *,
        depth: int,
        steps_in_flight: int,
        policy: MirrorPolicy,
    ) -> None:
        words = sum(prod(shape) for shape in fields.values())
        self.name = name
        self.counters = MirrorCounters()
        self._device = device
        self._host = np.zeros(words, np.int32)
        self.array: Array = device.array(name, (words,), np.int32)
        self.ring = StagingRing(
            device, f"{name}_ring", (words,), np.int32, depth=depth, steps_in_flight=steps_in_flight, policy=policy
        )
        self.fields: dict[str, MirroredBuffer] = {}
        self._last: tuple[int, ...] = ()
        self._last_start = start = 0
        for field, shape in fields.items():
            stop = start + prod(shape)
            memory = _FieldMemory(name, self._host[start:stop].reshape(shape), self.array[start:stop].reshape(shape))
            self.fields[field] = MirroredBuffer(memory, field, Truth.HOST_EXACT)
            self._last, self._last_start, start = shape, start, stop

    def __getitem__(self, field: str) -> MirroredBuffer:
        return self.fields[field]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + self._host.nbytes + self.ring.nbytes

    def upload(self, step: int, stream: Stream, last_rows: int | None = None) -> Event:
        """Stage every field for `step` = 0, 1, 2, ... and queue the one copy. The host may write the fields again at once.

        A pack that does not go with every step (admission records) counts its own uploads as steps.

        Args:
            last_rows: of the last field: rows that the step uses, and a count in another field says so to its kernels. What stands
                behind them, and behind the next power of two, is not moved: the device keeps what it had there. None = all of them.

        Raises:
            MirrorError: steps are not consecutive, or the last field has fewer rows.
            StagingBusyError: more steps in flight than the ring was made for.
        """
        words = self._words(last_rows)
        self.ring.next(step).write(self._host[:words], slice(0, words))
        event = self.ring.submit(step, stream, self.array, words)
        for field in self.fields.values():
            field.uploaded(stream, event)
        self.counters.uploads += 1
        self.counters.uploaded_bytes += words * self.array.dtype.itemsize
        return event

    def _words(self, last_rows: int | None) -> int:
        rows, *row = self._last
        if last_rows is None:
            return len(self._host)
        if not 0 <= last_rows <= rows:
            raise MirrorError(f"{self.name}: last_rows = {last_rows}: {list(self.fields)[-1]} has {rows} rows")
        # Few lengths, because the copy of each is bound once: powers of two.
        moved = min(1 << (last_rows - 1).bit_length(), rows) if last_rows else 0
        return self._last_start + moved * prod(row)

    def free(self) -> None:
        self._device.free(self.array)
        self.ring.free()

    def __str__(self) -> str:
        lines = [f"pack {self.name} int32[{self.array.shape[0]}], ring of {self.ring.depth}"]
        return "\n".join([*lines, *(f"  {field}" for field in self.fields.values())])
