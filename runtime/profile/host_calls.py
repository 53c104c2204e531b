"""What the host asked of CUDA in a steady window: which calls made it wait, and for what. Pure: records in, a verdict out.

The rule of a step: the host waits for the event behind the outcome's copy, and for nothing else. Calls are known by name; one that
nobody has listed as returning at once is reported, so that a new call has to be looked at before it is believed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

AT_ONCE = frozenset(
    {
        *("cudaEventQuery", "cudaStreamQuery", "cudaEventRecord", "cudaEventRecordWithFlags", "cudaStreamWaitEvent"),
        *("cudaGraphLaunch", "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemsetAsync"),
        *("cudaGetLastError", "cudaPeekAtLastError", "cudaGetDevice", "cudaStreamIsCapturing", "cudaStreamGetCaptureInfo"),
        *("cuEventQuery", "cuStreamQuery", "cuEventRecord", "cuEventRecordWithFlags", "cuStreamWaitEvent"),
        *("cuGraphLaunch", "cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyAsync", "cuMemcpy2DAsync"),
        *("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"),
        *("cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamIsCapturing", "cuStreamGetCaptureInfo"),
    }
)
"""Calls that return before the work has run. Copies are among them as long as both ends are device or page-locked memory."""

EVENT_WAITS = frozenset({"cudaEventSynchronize", "cuEventSynchronize"})
ORDERS = "stream wait event"
"""The one synchronisation record that is no wait of the host: a stream is told to wait."""

COUNTED = {
    ("event_synchronizes",): EVENT_WAITS,
    ("event_queries",): frozenset({"cudaEventQuery", "cuEventQuery"}),
    ("stream_synchronizes",): frozenset({"cudaStreamSynchronize", "cuStreamSynchronize"}),
    ("device_synchronizes", "transfers"): frozenset({"cudaDeviceSynchronize", "cuCtxSynchronize"}),
    ("graph_launches",): frozenset({"cudaGraphLaunch", "cuGraphLaunch"}),
}
"""Our own counters (runtime/device_counters.py), and the calls behind each."""

_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


class ApiCall(NamedTuple):
    """A call into CUDA's runtime or driver: name as the tracer has it, times in ns, and what joins it with other records."""

    name: str
    start: int
    end: int
    thread: int
    correlation: int


class SyncRecord(NamedTuple):
    """A synchronisation: "event", "stream", "context" or ORDERS; id of the stream, or number of the event's latest recording."""

    kind: str
    correlation: int
    stream: int
    recording: int


class EventRecord(NamedTuple):
    """An event was recorded on a stream: number of this recording, id of the stream."""

    recording: int
    stream: int


@dataclass(frozen=True)
class HostCall:
    """One call as the program made it.

    Attributes:
        name: without the version that CUDA appends. inside: calls that CUDA made of its own within it.
        waits: what the tracer says it synchronised with: "an event of copy", "stream compute", "everything".
        pageable: it copied from or to memory that is not page-locked, for which CUDA waits.
    """

    name: str
    start: int
    end: int
    inside: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    pageable: bool = False


@dataclass(frozen=True)
class HostCalls:
    """The calls of a window of steady steps.

    Attributes:
        steps: of the window. allowed: the stream whose events the host may wait for.
        calls: in order. counted: what our own counters say of the same window.
    """

    steps: int
    allowed: str
    calls: Sequence[HostCall]
    counted: Mapping[str, int] = field(default_factory=dict)

    def waits(self) -> Counter[str]:
        """Waits of the host by what for: "cudaEventSynchronize for an event of copy"."""
        return Counter(_wait(call) for call in self.calls if call.name not in AT_ONCE)

    def findings(self) -> list[str]:
        """What breaks the rule, and where our counters say something else than the trace; nothing when all is well."""
        faults = Counter(fault for call in self.calls for fault in _faults(call, self.allowed))
        return [f"{fault}: {count} times in {self.steps} steps" for fault, count in faults.items()] + self._disagreements()

    def _disagreements(self) -> list[str]:
        made = Counter(call.name for call in self.calls)
        found = []
        for names, calls in COUNTED.items():
            ours, traced = sum(self.counted[name] for name in names), sum(made[call] for call in calls)
            if ours != traced:
                found.append(f"our counters have {ours} {' + '.join(names)}, the trace {traced} of {', '.join(sorted(calls))}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        calls = [list(vars(call).values()) for call in self.calls]
        return {"steps": self.steps, "allowed": self.allowed, "calls": calls, "counted": dict(self.counted)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HostCalls:
        calls = [HostCall(row[0], row[1], row[2], tuple(row[3]), tuple(row[4]), row[5]) for row in values["calls"]]
        return cls(values["steps"], values["allowed"], calls, values["counted"])


def joined(
    calls: Iterable[ApiCall],
    syncs: Iterable[SyncRecord],
    events: Iterable[EventRecord],
    pageable: Iterable[int],
    streams: Mapping[int, str],
) -> list[HostCall]:
    """Records of a tracer as calls of the host, in order.

    Args:
        pageable: correlation of each copy with an end in pageable memory.
        streams: names of the streams by the tracer's ids.
    """
    stream_of = {event.recording: event.stream for event in events}
    waits: defaultdict[int, list[str]] = defaultdict(list)
    for sync in syncs:
        if sync.kind != ORDERS:
            waits[sync.correlation].append(_target(sync, stream_of, streams))
    pages = frozenset(pageable)
    found = []
    for outer, inside in _nested(calls):
        numbers = list(dict.fromkeys(call.correlation for call in (outer, *inside)))
        found.append(
            HostCall(
                plain_name(outer.name),
                outer.start,
                outer.end,
                tuple(plain_name(call.name) for call in inside),
                tuple(dict.fromkeys(wait for number in numbers for wait in waits[number])),
                not pages.isdisjoint(numbers),
            )
        )
    return sorted(found, key=lambda call: call.start)


def plain_name(name: str) -> str:
    """cudaEventSynchronize_v3020 -> cudaEventSynchronize."""
    return _VERSION.sub("", name)


def _nested(calls: Iterable[ApiCall]) -> list[tuple[ApiCall, list[ApiCall]]]:
    """Each call that the program made, with those made within it by the same thread."""
    found: list[tuple[ApiCall, list[ApiCall]]] = []
    for call in sorted(calls, key=lambda call: (call.thread, call.start, -call.end)):
        outer = found[-1][0] if found else None
        if outer is not None and outer.thread == call.thread and call.end <= outer.end:
            found[-1][1].append(call)
        else:
            found.append((call, []))
    return found


def _target(sync: SyncRecord, stream_of: Mapping[int, int], streams: Mapping[int, str]) -> str:
    if sync.kind == "event":
        if sync.recording not in stream_of:
            return "an event whose recording was not seen"
        stream = stream_of[sync.recording]
        return f"an event of {streams.get(stream, f'stream {stream}')}"
    if sync.kind == "stream":
        return f"stream {streams.get(sync.stream, sync.stream)}"
    return "everything"


def _wait(call: HostCall) -> str:
    return f"{call.name} for {' and '.join(call.waits) or 'what the tracer does not say'}"


def _faults(call: HostCall, allowed: str) -> list[str]:
    names = (call.name, *call.inside)
    if call.pageable:
        return [f"{call.name} copies pageable memory, for which CUDA waits"]
    unknown = [name for name in names if name not in AT_ONCE and name not in EVENT_WAITS]
    if unknown:
        within = f" within {call.name}" if unknown[0] != call.name else ""
        wait = f" waits for {' and '.join(call.waits)}" if call.waits else " is not known to return at once"
        return [f"{unknown[0]}{within}{wait}"]
    if any(name in EVENT_WAITS for name in names):
        return [] if call.waits == (f"an event of {allowed}",) else [f"{_wait(call)}; an event of {allowed} is the one allowed"]
    looks = all(name.endswith("Query") for name in names)
    return [] if looks or not call.waits else [_wait(call)]
