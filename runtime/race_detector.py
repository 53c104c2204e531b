"""Happens-before by vector clocks, checked when work is enqueued: which two accesses touch the same bytes in no order.

The actors are the streams. Stream s counts its operations; a clock maps a stream to the last of its operations that is known to
have run before. A stream's clock grows when it waits for an event, the host's clock when the host waits for anything.

The host needs no log of its own: one host thread enqueues everything, so a host access precedes every operation enqueued after
it. It can only race with operations enqueued before it, and those are in the log.

Method: FastTrack (Flanagan and Freund, PLDI 2009), with ranges of bytes in place of variables and logs in place of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from runtime.virtual_memory import Allocation
from runtime.virtual_site import Origin

Clock: TypeAlias = "dict[int, int]"
"""stream index -> number of its operations known to have run before."""


class Access(NamedTuple):
    """Bytes [start, stop) of an allocation, read or written. A strided view counts as the whole range it spans."""

    allocation: Allocation
    start: int
    stop: int
    writes: bool


class Hazard(AssertionError):  # noqa: N818 - a finding about the program, not an error of the call
    """A defect in how the program orders its work. Never caused by a user's input."""


class UseAfterFree(Hazard):
    """Freed memory is used, or memory is freed under queued work."""


class Race(Hazard):
    """Two accesses of the same bytes, at least one of them a write, with nothing that orders them.

    Attributes:
        buffer: name of the array.
        start, stop: the bytes that both touch, counted from the start of the array.
        earlier, later: the two operations, in the order in which the host issued them.
    """

    def __init__(
        self, buffer: str, start: int, stop: int, earlier: Origin, earlier_writes: bool, later: Origin, later_writes: bool
    ) -> None:
        self.buffer, self.start, self.stop = buffer, start, stop
        self.earlier, self.earlier_writes, self.later, self.later_writes = earlier, earlier_writes, later, later_writes
        super().__init__(
            f"{type(self).__name__} on `{buffer}` bytes [{start}, {stop}): {_verb(later_writes)} by {later} is not ordered after "
            f"{_verb(earlier_writes)} by {earlier}. {self._remedy()}"
        )

    def _remedy(self) -> str:
        if self.later.stream is None:
            return "The host must first wait for an event recorded after the earlier one."
        return "The later stream must wait for an event recorded after the earlier one."


class StaleStaging(Race):
    """The host overwrote page-locked memory that queued work may still have to read."""

    def _remedy(self) -> str:
        return "Write to the next block of a ring, or wait for an event recorded after the reader."


def _verb(writes: bool) -> str:
    return "the write" if writes else "the read"


def join(clock: Clock, other: Clock) -> None:
    """Let `clock` know whatever `other` knows."""
    for actor, tick in other.items():
        if tick > clock.get(actor, 0):
            clock[actor] = tick


_Entry: TypeAlias = "tuple[int, int, bool, int, int, Origin]"  # start, stop, writes, actor, tick, origin


class RaceDetector:
    """Logs of the accesses that something later may still race with.

    Args:
        report: called with each hazard; raises it or keeps it.
        host: the clock of the host, shared with the device, which lets it grow.
    """

    def __init__(self, report: Callable[[Hazard], None], host: Clock) -> None:
        self._report = report
        self._host = host
        self._log: dict[Allocation, list[_Entry]] = {}

    def admit(self, origin: Origin, accesses: Iterable[Access], clock: Clock, actor: int) -> None:
        """Check an operation of stream `actor` against the logs, then log it. `clock[actor]` is its own tick.

        An older entry is forgotten once nothing can race with it alone:
        the host knows it (whatever is enqueued later comes after it), or this operation comes after it, covers its bytes and
        conflicts with at least as much (what is unordered with the older one is unordered with this one too).
        """
        log, host, tick = self._log, self._host, clock[actor]
        for allocation, start, stop, writes in accesses:
            fresh = (start, stop, writes, actor, tick, origin)
            entries = log.get(allocation)
            if entries is None:
                log[allocation] = [fresh]
                continue
            kept = []
            for entry in entries:
                old_start, old_stop, old_writes, old_actor, old_tick, old_origin = entry
                if old_tick <= clock.get(old_actor, 0):
                    if (writes or not old_writes) and start <= old_start and old_stop <= stop:
                        continue
                    if old_tick <= host.get(old_actor, 0):
                        continue
                elif (writes or old_writes) and old_start < stop and start < old_stop:
                    self._report(
                        Race(allocation.name, max(start, old_start), min(stop, old_stop), old_origin, old_writes, origin, writes)
                    )
                kept.append(entry)
            kept.append(fresh)
            log[allocation] = kept

    def admit_host(self, origin: Origin, access: Access) -> None:
        """Check an access of the host, which happens now."""
        for earlier, start, stop, earlier_writes in self._unordered(access):
            kind = StaleStaging if access.writes and not earlier_writes else Race
            self._report(kind(access.allocation.name, start, stop, earlier, earlier_writes, origin, access.writes))

    def admit_free(self, origin: Origin, allocation: Allocation) -> None:
        """Check that no queued operation still needs `allocation`, and forget it."""
        for earlier, *_ in self._unordered(Access(allocation, 0, allocation.nbytes, True)):
            self._report(
                UseAfterFree(
                    f"`{allocation.name}` is freed by {origin} while {earlier} may still use it. "
                    "The host must first wait for an event recorded after that."
                )
            )
        self._log.pop(allocation, None)

    def _unordered(self, access: Access) -> list[tuple[Origin, int, int, bool]]:
        """Logged accesses that conflict with `access` and that the host does not know to be over."""
        entries = self._log.get(access.allocation)
        if entries is None:
            return []
        host = self._host
        entries = [entry for entry in entries if entry[4] > host.get(entry[3], 0)]
        self._log[access.allocation] = entries
        return [
            (origin, max(start, access.start), min(stop, access.stop), writes)
            for start, stop, writes, _, _, origin in entries
            if (writes or access.writes) and start < access.stop and access.start < stop
        ]

    @property
    def logged(self) -> int:
        """How many accesses are kept at present."""
        return sum(len(entries) for entries in self._log.values())
