"""MirroredBuffer: the host and the device copy of one array, and the tag that says which of them is true."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.launch import Array, Event
from runtime.device import Stream
from runtime.landing import PendingRead
from runtime.mirror_counters import MirrorCounters
from runtime.mirror_diffs import DiffLog
from runtime.mirror_errors import MirrorError, PinnedBufferError, StagingBusyError
from runtime.mirror_memory import Memory
from runtime.mirror_tag import State, Tag
from runtime.mirror_values import HostIndex, Values, as_host_values
from runtime.truth import Truth


class MirroredBuffer:
    """One array with a copy on each side of the host/device line. Nothing copies or waits unless it is called by that name.

    Args:
        memory: where the copies live (runtime/mirror_memory.py); shape and dtype are its array's.
        name: graphs name the buffer in their reads and writes by it.
        truth: who may write it.
        poison: fill the host copy with a sentinel when the device overtakes it, so that an unguarded read is loud.
        diffs: keep every host write as (row, column, value), for a kernel that applies them (2-D buffers).

    Attributes:
        tag: versions, writers and copies in flight; checks every use (runtime/mirror_tag.py).
        moves: how often it was given another address.
    """

    def __init__(self, memory: Memory, name: str, truth: Truth, *, poison: bool = False, diffs: bool = False) -> None:
        self.name, self.truth, self.poison, self.keeps_diffs = name, truth, poison, diffs
        self.moves = 0
        self._counters = MirrorCounters()
        self._pinned_by: dict[Hashable, None] = {}
        self._settle_in(memory)

    def _settle_in(self, memory: Memory) -> None:
        self.memory = memory
        self.shape: tuple[int, ...] = memory.array.shape
        self.dtype: np.dtype[Any] = memory.array.dtype
        self.nbytes = memory.array.nbytes
        self.tag = Tag(self.name, self.truth)
        self._poisoned: int | None = None
        self._diffs = DiffLog(self.name, self.shape) if self.keeps_diffs else None

    @property
    def state(self) -> State:
        return self.tag.state

    @property
    def host_version(self) -> int:
        return self.tag.host_version

    @property
    def device_version(self) -> int:
        return self.tag.device_version

    @property
    def counters(self) -> MirrorCounters:
        self._counters.stale_reads_refused = self.tag.refused
        return self._counters

    def poll(self) -> State:
        """Look at the event of an upload in flight, without waiting, and let go of it once it has arrived."""
        if self.tag.upload is not None and self.tag.upload.event.query():
            self.tag.upload = None
        return self.state

    # Host side

    def write_host(self, values: Values, index: HostIndex = ...) -> None:
        """host[index] = values. The device copy is older from now on, until upload().

        Raises:
            TwoWritersError: only the device writes this buffer, or its device copy is newer than the host's.
            StaleValueError: a value is a HostUpperBound.
            StagingBusyError: both sides share the memory, and queued work may still read it or a download was not taken.
            MirrorError: the values do not fit shape or dtype.
        """
        self.tag.check_host_write()
        self._refuse_unread("write_host")
        fitting = as_host_values(values, self.name, self.dtype)
        try:
            self.memory.write(fitting, index)
        except (ValueError, IndexError) as error:
            raise MirrorError(f"{self.name}{list(self.shape)}[{index}] = values {list(fitting.shape)}: {error}") from error
        if self._diffs is not None:
            self._diffs.note(fitting, index)
        self.tag.host_wrote("write_host")

    def write_cells(self, cells: Sequence[tuple[int, int, int]]) -> None:
        """host[row, column] = value for each (row, column, value) of a 2-D buffer, each cell once: as by write_host one by one.

        Raises as write_host does, and nothing is written then.
        """
        if not cells:
            return
        self.tag.check_host_write()
        self._refuse_unread("write_cells")
        fitting = as_host_values([value for _, _, value in cells], self.name, self.dtype)
        rows, columns = [row for row, _, _ in cells], [column for _, column, _ in cells]
        if min(rows) < 0 or min(columns) < 0 or max(rows) >= self.shape[0] or max(columns) >= self.shape[1]:
            raise MirrorError(f"{self.name}{list(self.shape)}: cells {list(cells)} are not all inside")
        self.memory.write(fitting, (rows, columns))
        if self._diffs is not None:
            self._diffs.note_cells(cells)
        self.tag.host_wrote("write_cells")

    def read_host(self) -> npt.NDArray[Any]:
        """The host copy, read-only. StaleReadError when the device has written since, or nobody has."""
        self.tag.check_host_read()
        return self.memory.read()

    def upload(self, stream: Stream) -> Event:
        """Queue what brings the host copy to the device: a copy through the pinned ring, or an event where the memory is shared.

        Work queued on `stream` later sees it. Work on another stream first calls order_after_upload.

        Raises:
            TwoWritersError: the device copy is newer, or only the device writes this buffer.
            StagingBusyError: more uploads in flight than the ring has blocks.
        """
        self.tag.check_host_write()
        event = self.memory.upload(stream)
        self.uploaded(stream, event)
        self._counters.uploads += 1
        self._counters.uploaded_bytes += 0 if self.memory.mapped else self.nbytes
        return event

    def uploaded(self, stream: Stream, event: Event) -> None:
        """Move the tag as upload() does: for a MirrorPack, which moves several buffers by one copy."""
        self.tag.uploaded(stream, event)
        if self._diffs is not None:
            self._diffs.clear()

    def order_after_upload(self, stream: Stream) -> None:
        """Let `stream` wait for the upload in flight. The host does not wait."""
        upload = self.tag.upload
        if upload is not None and not upload.precedes(stream):
            stream.wait(upload.event)
            upload.ordered.append(stream)

    def carry(self) -> None:
        """What the host has written so far travels by other means: staged diffs, an admission record.

        The launch that applies it names this buffer among its writes, and brings the device to this version.

        Raises MirrorError where both sides share the memory: the device would write it while the host does.
        """
        self.tag.check_host_write()
        if self.memory.mapped:
            raise MirrorError(
                f"{self.name}: both sides share its memory, so the device cannot apply later what the host writes now; create it "
                f"with apart=True"
            )
        self.tag.carried = self.tag.host_version

    @property
    def num_diffs(self) -> int:
        """Cells written since the last take_diffs() or upload()."""
        return len(self._diffs) if self._diffs is not None else 0

    def take_diffs(self, capacity: int) -> npt.NDArray[np.int32]:
        """(row, column, value) of every cell written since the last call, int32 [n <= capacity, 3], oldest first.

        The caller stages them; the launch that applies them (kernels/slots.staged_write) brings the device copy up to date.

        Raises MirrorError when there are more than `capacity`, or the buffer keeps none.
        """
        if self._diffs is None:
            raise MirrorError(f"{self.name}: keeps no diffs; create it with diffs=True, or upload(stream) the whole")
        taken = self._diffs.take(capacity)
        self.carry()
        return taken

    # Device side

    @property
    def device_array(self) -> Array:
        """The device copy as recorders bind it. Binding is no read: reads are declared by name and checked at launch."""
        return self.memory.array

    def read_device(self, reader: str, stream: Stream | None = None) -> Array:
        """The device copy, for work of `reader` on `stream`.

        Raises StaleReadError: the host copy is newer, nobody has written it, or its upload is on another stream that `stream` has
        not waited for.
        """
        self.tag.check_device_read(reader, stream, applies=False)
        return self.memory.array

    def check_device_write(self, writer: object) -> None:
        """Raises TwoWritersError: the host copy is newer and would be lost. StagingBusyError: the host has yet to read it there."""
        self.tag.check_device_write(writer)
        self._refuse_unread(writer)

    def _refuse_unread(self, writer: object) -> None:
        """In shared memory a download is read in place: whoever writes before it was taken changes what it yields."""
        read = self.tag.unread if self.memory.mapped else None
        if read is not None:
            raise StagingBusyError(
                f"{self.name}: {writer} would write memory that both sides share, and the download of version {read.version} was "
                f"not taken; take() it first, or publish results through an OutcomeRing"
            )

    def wrote_on_device(self, writer: object) -> None:
        """Work that writes the device copy was queued: the host copy is older from now on.

        A HOST_EXACT buffer has one writer, the host: there the launch has applied what was carried, nothing else.

        Raises as check_device_write does.
        """
        self.check_device_write(writer)
        self.overtaken(writer)

    def overtaken(self, writer: object) -> None:
        """The second half of wrote_on_device, for whoever has checked."""
        if self.tag.device_wrote(writer) and self.poison and self._poisoned != self.tag.host_version:
            self.memory.poison_host()
            self._poisoned = self.tag.host_version  # what is written there, or lands, has another

    def download(self, stream: Stream) -> PendingRead:
        """Queue the way back; take() on the result waits and yields the array, once.

        `stream` must be ordered after the writer: the stream that it was queued on, or one that waited for its event. Likewise the
        next writer must come after the event of the read.

        Raises:
            StaleReadError: the host copy is newer, or nobody has written the device copy.
            StagingBusyError: more reads wait to be taken than there are blocks.
        """
        self.tag.check_device_read("download", stream, applies=False)
        read = self.memory.download(stream, self.tag.device_version)
        read.on_take = self._downloaded
        self.tag.downloads = [*(earlier for earlier in self.tag.downloads if not earlier.taken), read]
        self._counters.downloads += 1
        self._counters.downloaded_bytes += 0 if self.memory.mapped else self.nbytes
        return read

    def _downloaded(self, version: int, values: npt.NDArray[Any]) -> None:
        if self.tag.downloaded(version):
            self.memory.landed(values)

    # Graphs

    @property
    def pinned_by(self) -> tuple[Hashable, ...]:
        """Keys of the graphs that have this buffer's address baked in."""
        return tuple(self._pinned_by)

    def pin(self, graph: Hashable) -> None:
        self._pinned_by[graph] = None

    def unpin(self, graph: Hashable) -> None:
        self._pinned_by.pop(graph, None)

    def refuse_pinned(self, what: str) -> None:
        """Raises PinnedBufferError, naming the graphs that hold the address."""
        if self._pinned_by:
            graphs = ", ".join(str(graph) for graph in self._pinned_by)
            raise PinnedBufferError(
                f"{self.name} {list(self.shape)} cannot be {what}: pinned by {graphs}, which would go on using the old address; "
                f"release those graphs and capture them again, or size it for the largest step at start"
            )

    def move_to(self, memory: Memory) -> None:
        """Live elsewhere, under another address or shape; both copies start anew. The caller has freed the old memory.

        Raises PinnedBufferError when a graph holds the address.
        """
        self.refuse_pinned("moved")
        self.moves += 1
        self._settle_in(memory)

    def __str__(self) -> str:
        parts = [f"{self.name} {self.dtype}{list(self.shape)}", *self.tag.parts()]
        if self._pinned_by:
            parts.append(f"pinned by {', '.join(map(str, self._pinned_by))}")
        return " | ".join(parts)
