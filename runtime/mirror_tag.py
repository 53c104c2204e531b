"""The staleness tag of a mirrored buffer: which copy is true, who made it so, and which uses of the other are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from graphs.launch import Event
from runtime.device import Stream
from runtime.landing import PendingRead
from runtime.mirror_errors import StaleReadError, TwoWritersError
from runtime.truth import Truth

State: TypeAlias = Literal["unwritten", "synced", "host newer", "device newer", "in flight"]


@dataclass(slots=True)
class Upload:
    """A queued upload of `version` on `stream`. Work there comes after it, and on the streams that have waited for `event`."""

    version: int
    event: Event
    stream: Stream
    ordered: list[Stream] = field(default_factory=list)

    def precedes(self, stream: Stream) -> bool:
        return stream is self.stream or any(known is stream for known in self.ordered)


@dataclass
class Tag:
    """A version is a number of the contents, 0 = never written: equal numbers mean equal contents, the larger one is the truth.

    Attributes:
        name, truth: of the buffer.
        host_version, device_version: what each copy holds. The device's counts from where on its stream the work is queued.
        upload: the last one, until its event was seen. downloads: in flight or not taken, see `unread`.
        carried: the host version that staged diffs or an admission record bring to the device, or None.
        refused: stale reads refused so far.
    """

    name: str
    truth: Truth
    host_version: int = field(init=False)
    device_version: int = 0
    upload: Upload | None = None
    downloads: list[PendingRead] = field(default_factory=list)
    carried: int | None = None
    refused: int = 0

    def __post_init__(self) -> None:
        # The host copy starts as zeros that count; what the device copy holds, nobody has written.
        self.host_version = 0 if self.truth is Truth.DEVICE_EXACT else 1
        self.host_writer = "initial zeros" if self.host_version else "nobody"
        self.device_writer: object = "nobody"

    @property
    def state(self) -> State:
        """Derived, never stored. A copy counts as in flight until somebody has seen its event."""
        if self.upload is not None or self.unread is not None:
            return "in flight"
        if self.host_version == self.device_version:
            return "synced" if self.host_version else "unwritten"
        return "host newer" if self.host_version > self.device_version else "device newer"

    @property
    def unread(self) -> PendingRead | None:
        """The oldest download that nobody has taken."""
        return next((read for read in self.downloads if not read.taken), None)

    # What happens

    def host_wrote(self, writer: str) -> None:
        newest = self.host_version if self.host_version > self.device_version else self.device_version
        self.host_version, self.host_writer = newest + 1, writer

    def uploaded(self, stream: Stream, event: Event) -> None:
        self.device_version, self.device_writer = self.host_version, f"upload on {stream.name}"
        self.upload, self.carried = Upload(self.host_version, event, stream), None

    def device_wrote(self, writer: object) -> bool:
        """Has the device overtaken the host? Not where it only applied what the host had written."""
        # A graph's key becomes text where an error wants it, not at every launch.
        self.upload, self.device_writer = None, writer
        if self.carried is not None:
            self.device_version, self.carried = self.carried, None
            return False
        if self.truth is Truth.HOST_EXACT:
            return False
        newest = self.host_version if self.host_version > self.device_version else self.device_version
        self.device_version = newest + 1
        return True

    def downloaded(self, version: int) -> bool:
        """Does the host copy become `version`? Not when the device has moved on: then only the reader of it has it."""
        if not self.host_version < version == self.device_version:
            return False
        self.host_version, self.host_writer = version, "download"
        return True

    # What is refused

    def check_host_write(self) -> None:
        """Raises TwoWritersError: only the device writes this buffer, or its copy is newer."""
        if self.truth is Truth.DEVICE_EXACT:
            raise TwoWritersError(
                f"{self._attempt('write on the host')}: only the device writes it (device exact); write it in a kernel, or bring "
                f"the value in an admission record"
            )
        if self.device_version > self.host_version:
            raise TwoWritersError(
                f"{self._attempt('write on the host')}: the device copy, written by {self.device_writer}, is newer and would be "
                f"lost; download(stream) and take() it first, or write it on the device"
            )

    def check_host_read(self) -> None:
        """Raises StaleReadError: the device has written since, or nobody has written."""
        if self.host_version == self.device_version == 0:
            self._refuse("the host", "nobody", "nothing is there to read yet; queue the step that writes it")
        if self.host_version < self.device_version:
            self._refuse(
                "the host",
                self.device_writer,
                "call download(stream) and take() what it returns, or read the step's own copy with OutcomeRing.collect(step)",
            )

    def check_device_read(self, reader: object, stream: Stream | None, applies: bool) -> None:
        """Raises StaleReadError: the host copy is newer, nobody has written it, or its upload is not ordered before `stream`.

        applies: the reader writes the buffer before it reads it (it applies what is carried, or computes it anew).
        """
        carried = applies and self.carried == self.host_version
        if self.host_version > self.device_version and not carried:
            self._refuse(
                f"the device by {reader}",
                self.host_writer,
                "call upload(stream) before the launch, or stage the diffs that the launch applies",
            )
        if self.device_version == 0 and not applies:
            self._refuse(f"the device by {reader}", "nobody", "write it on the device first: admit a request, or fill it")
        if stream is not None and self.upload is not None and not self.upload.precedes(stream):
            self._refuse(
                f"the device by {reader} on stream {stream.name}",
                f"an {self.device_writer} that may not have arrived",
                f"call order_after_upload({stream.name})",
            )

    def check_device_write(self, writer: object) -> None:
        """Raises TwoWritersError: `writer` would lose what the host has written since the last upload, or is no writer of it."""
        if self.host_version > self.device_version and self.carried != self.host_version:
            remedy = "upload(stream) first"
            if self.truth is Truth.HOST_EXACT:
                remedy += f", or stage the diffs (take_diffs, carry) that {writer} applies"
            raise TwoWritersError(
                f"{self._attempt(f'write on the device by {writer}')}: the host copy, written by {self.host_writer}, is newer and "
                f"would be lost; {remedy}"
            )
        if self.truth is Truth.HOST_EXACT and self.carried is None:
            raise TwoWritersError(
                f"{self._attempt(f'write on the device by {writer}')}: only the host writes it (host exact), and nothing that it "
                f"wrote is staged for {writer} to apply; take_diffs() or carry() first, or write another buffer"
            )

    def _refuse(self, where: str, writer: object, remedy: str) -> None:
        self.refused += 1
        raise StaleReadError(
            f"stale read of {self.name} on {where}: host version {self.host_version}, device version {self.device_version}, "
            f"the newer one written by {writer}; {remedy}"
        )

    def _attempt(self, what: str) -> str:
        return f"{self.name}: {what} (host version {self.host_version}, device version {self.device_version})"

    def parts(self) -> Iterator[str]:
        """The whole tag as text, piece by piece."""
        yield self.truth.value
        yield self.state
        yield f"host v{self.host_version} by {self.host_writer}"
        yield f"device v{self.device_version} by {self.device_writer}"
        if self.upload is not None:
            yield f"upload of v{self.upload.version} in flight"
        unread = self.unread
        if unread is not None:
            yield f"download of v{unread.version} not taken"
        if self.carried is not None:
            yield f"v{self.carried} carried by staged diffs"
