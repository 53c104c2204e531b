"""CallCollector: every call of the host into CUDA, and what each wait was for, by CUPTI's records of calls, waits and events.

A pass of its own: a record a call costs the host more than a step has to spare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphs.key import GraphKey
from runtime.device_counters import DeviceCounters
from runtime.profile.collectors import Collector
from runtime.profile.cupti_collector import collect, dropped_records, load_cupti
from runtime.profile.host_calls import COUNTED, ORDERS, ApiCall, EventRecord, HostCalls, SyncRecord, joined
from runtime.profile.trace import Activity, Mode

_LOST = 0xFFFFFFFF
"""CUPTI's number for a field that does not apply."""


class CallCollector(Collector):
    """Collects calls, waits, event records and copies.

    Raises:
        DeviceError: CUPTI is missing or refuses; it serves one profiler at a time.
    """

    mode = Mode.CALLS

    def __init__(self) -> None:
        self._cupti = cupti = load_cupti()
        kinds, domains = cupti.ActivityKind, cupti.CallbackDomain
        types = cupti.ActivitySynchronizationType
        self._sync_kinds = {
            int(types.EVENT_SYNCHRONIZE): "event",
            int(types.STREAM_WAIT_EVENT): ORDERS,
            int(types.STREAM_SYNCHRONIZE): "stream",
            int(types.CONTEXT_SYNCHRONIZE): "context",
        }
        self._takers: dict[int, Callable[[Any], None]] = {
            int(kinds.RUNTIME): lambda record: self._call(domains.RUNTIME_API, record),
            int(kinds.DRIVER): lambda record: self._call(domains.DRIVER_API, record),
            int(kinds.SYNCHRONIZATION): self._sync,
            int(kinds.CUDA_EVENT): self._event,
            int(kinds.MEMCPY): self._copy,
        }
        self._clear()
        self._engine: Any = None
        collect(cupti, self._takers, self._take)

    def begin(self, engine: Any) -> None:
        self._engine = engine
        engine.runner.device.synchronize()
        self._cupti.activity_flush_all(1)
        self._clear()

    def before(self, key: GraphKey) -> None:
        self._marks.append((int(self._cupti.get_timestamp()), self._engine.runner.device.counters.copy()))

    def end(self, engine: Any) -> tuple[list[Activity], int]:
        engine.runner.device.synchronize()
        self._cupti.activity_flush_all(1)
        return [], dropped_records(self._cupti)

    def host_calls(self, window: tuple[int, int], steps: int) -> HostCalls:
        """The calls between the launches of two replays, the first included."""
        (begin, before), (end, after) = (self._marks[place] for place in window)
        runner = self._engine.runner
        calls = joined(self._calls, self._syncs, self._events, self._pageable, self._stream_names(runner))
        used = vars(after.since(before))
        return HostCalls(
            steps,
            # Where both have one memory nothing is carried over, and the outcome is there when the compute stream has written it.
            (runner.compute if runner.table.policy.integrated else runner.copy).name,
            [call for call in calls if begin <= call.start < end],
            {name: used[name] for names in COUNTED for name in names},
        )

    def _stream_names(self, runner: Any) -> dict[int, str]:
        return {int(self._cupti.get_stream_id_ex(0, stream.pointer, 0)): stream.name for stream in (runner.compute, runner.copy)}

    def _clear(self) -> None:
        self._calls: list[ApiCall] = []
        self._syncs: list[SyncRecord] = []
        self._events: list[EventRecord] = []
        self._pageable: list[int] = []
        self._marks: list[tuple[int, DeviceCounters]] = []

    def _take(self, activities: list[Any]) -> None:
        """Called by CUPTI with the records of a full or flushed buffer, which is used again afterwards: everything is copied."""
        for record in activities:
            taker = self._takers.get(int(record.kind))
            if taker is not None:
                taker(record)

    def _call(self, domain: Any, record: Any) -> None:
        name = str(self._cupti.get_callback_name(domain, int(record.cbid)))
        self._calls.append(ApiCall(name, int(record.start), int(record.end), int(record.thread_id), int(record.correlation_id)))

    def _sync(self, record: Any) -> None:
        kind = self._sync_kinds.get(int(record.type), "unknown")
        self._syncs.append(SyncRecord(kind, int(record.correlation_id), int(record.stream_id), int(record.cuda_event_sync_id)))

    def _event(self, record: Any) -> None:
        if int(record.cuda_event_sync_id) != _LOST:
            self._events.append(EventRecord(int(record.cuda_event_sync_id), int(record.stream_id)))

    def _copy(self, record: Any) -> None:
        if int(self._cupti.ActivityMemoryKind.PAGEABLE) in (int(record.src_kind), int(record.dst_kind)):
            self._pageable.append(int(record.correlation_id))
