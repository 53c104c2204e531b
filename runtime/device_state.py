"""What a device takes at present: nothing once it is closed, no waiting and no allocation while a graph is captured."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from runtime.device_counters import CopyKind, DeviceCounters
from runtime.errors import DeviceError


class RunningCapture(Protocol):
    """What the state needs of a capture (runtime/stream_capture.py)."""

    name: str

    def spoil(self, reason: str) -> None: ...


C = TypeVar("C", bound=RunningCapture)


class DeviceState(Generic[C]):
    """Base of the devices.

    Attributes:
        capturing: the capture that is running.
        restricted: closed or capturing, as one flag for whoever asks at every step.
        counters: what the device was asked to do.
    """

    def __init__(self) -> None:
        self.counters = DeviceCounters()
        self.capturing: C | None = None
        self.restricted = False
        self._closed = False

    def begin_capture(self, capture: C) -> None:
        """DeviceError: another one is running, which is spoiled by it, or the device is closed."""
        self.refuse_in_capture(f"a second capture, of graph `{capture.name}`")
        self.capturing, self.restricted = capture, True

    def end_capture(self) -> None:
        self.capturing, self.restricted = None, self._closed

    def refuse_in_capture(self, what: str) -> None:
        """DeviceError when a capture is running, which is spoiled by it, or when the device is closed."""
        self._refuse_closed()
        if self.capturing is not None:
            self.capturing.spoil(what)
            raise DeviceError(
                f"capture of graph `{self.capturing.name}`: {what} is not allowed inside it: a replay would not repeat it"
            )

    def count_copy(self, kind: CopyKind, nbytes: int) -> None:
        self.counters.copies += 1
        self.counters.copied_bytes += nbytes
        self.counters.copies_by_kind[kind] += 1

    def _end(self) -> None:
        """No more is taken from now on."""
        self._closed = self.restricted = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DeviceError("the device is closed")
