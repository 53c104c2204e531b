"""CUPTI's part that the profile's call pass uses, over the GPU that does nothing (tests/idle_gpu.py): its calls leave records.

As on a GPU each call of the runtime has a call of the driver within it, recordings of events have numbers, and a wait names the
recording that it was for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import idle_gpu

LOST = 0xFFFFFFFF
NAMES = {"cudaStreamSynchronize": "cuStreamSynchronize", "cudaEventSynchronize": "cuEventSynchronize"}


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    CUDA_EVENT = 36
    SYNCHRONIZATION = 38
    GRAPH_TRACE = 51


class ActivitySynchronizationType(IntEnum):
    EVENT_SYNCHRONIZE = 1
    STREAM_WAIT_EVENT = 2
    STREAM_SYNCHRONIZE = 3
    CONTEXT_SYNCHRONIZE = 4


class FakeCupti(ModuleType):
    """Attributes: records: not handed over yet. pageable: addresses of memory that is not page-locked."""

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.ActivityKind, self.ActivitySynchronizationType = ActivityKind, ActivitySynchronizationType
        self.ActivityMemoryKind = SimpleNamespace(PAGEABLE=1, PINNED=2, DEVICE=3)
        self.CallbackDomain = SimpleNamespace(RUNTIME_API="runtime", DRIVER_API="driver")
        self.cuptiError = RuntimeError
        self.records: list[Any] = []
        self.enabled: set[int] = set()
        self.pageable: set[int] = set()
        self.dropped = 0
        self._numbers, self._recordings = count(1), count(1)
        self._names: list[tuple[str, str]] = []
        self._take: Callable[[list[Any]], None] = lambda records: None

    # what the collector calls

    def activity_register_callbacks(self, buffer: object, take: Callable[[list[Any]], None]) -> None:
        self._take = take

    def activity_enable(self, kind: int) -> None:
        self.enabled.add(int(kind))

    def activity_flush_all(self, flag: int) -> None:
        taken, self.records = self.records, []
        self._take(taken)

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        """Leaves the count at 0."""

    def get_timestamp(self) -> int:
        return time.perf_counter_ns()

    def get_callback_name(self, domain: str, cbid: int) -> str:
        assert self._names[cbid][0] == domain
        return self._names[cbid][1]

    def get_stream_id_ex(self, context: int, stream: int, per_thread: int) -> int:
        return 100 + stream

    # what the stand-in for CUDA calls

    def call(self, name: str, **of_sync: int) -> int:
        """Records of a call of the runtime, or of the driver alone; with a type those of a synchronisation. Its number."""
        number, start = next(self._numbers), time.perf_counter_ns()
        domain = "runtime" if name.startswith("cuda") else "driver"
        inside = NAMES.get(name)
        if inside is not None:
            self._api("driver", inside, next(self._numbers), start)
        if of_sync:
            fields = {"stream_id": LOST, "cuda_event_sync_id": LOST} | of_sync
            self.records.append(SimpleNamespace(kind=ActivityKind.SYNCHRONIZATION, correlation_id=number, **fields))
        version = "_v3020" if domain == "runtime" else ""
        self._api(domain, name + version, number, start)
        return number

    def recorded(self, stream: int) -> int:
        recording = next(self._recordings)
        number = self.call("cudaEventRecord")
        fields = {"correlation_id": number, "cuda_event_sync_id": recording, "stream_id": 100 + stream}
        self.records.append(SimpleNamespace(kind=ActivityKind.CUDA_EVENT, **fields))
        return recording

    def copied(self, name: str, target: int) -> None:
        number, kinds = self.call(name), self.ActivityMemoryKind
        end = kinds.PAGEABLE if target in self.pageable else kinds.PINNED
        self.records.append(
            SimpleNamespace(kind=ActivityKind.MEMCPY, correlation_id=number, src_kind=kinds.DEVICE, dst_kind=end)
        )

    def _api(self, domain: str, name: str, number: int, start: int) -> None:
        self._names.append((domain, name))
        kind = ActivityKind.RUNTIME if domain == "runtime" else ActivityKind.DRIVER
        self.records.append(
            SimpleNamespace(
                kind=kind,
                cbid=len(self._names) - 1,
                start=start,
                end=time.perf_counter_ns(),
                thread_id=1,
                correlation_id=number,
            )
        )


@contextmanager
def traced_idle_gpu() -> Iterator[tuple[Any, FakeCupti]]:
    """(runtime.cuda_device over calls that leave records, CUPTI)."""
    cupti, types, streams = FakeCupti(), ActivitySynchronizationType, count(1)

    def made(self: Any, non_blocking: bool = False) -> None:
        self.ptr = next(streams)

    def record(self: Any, stream: Any) -> None:
        self.recording = cupti.recorded(stream.ptr)

    def wait_event(self: Any, event: Any) -> None:
        cupti.call("cudaStreamWaitEvent", type=types.STREAM_WAIT_EVENT, cuda_event_sync_id=event.recording)

    def synchronize(self: Any) -> None:
        cupti.call("cudaEventSynchronize", type=types.EVENT_SYNCHRONIZE, cuda_event_sync_id=self.recording)

    def done(self: Any) -> bool:
        return bool(cupti.call("cudaEventQuery", type=types.EVENT_SYNCHRONIZE, cuda_event_sync_id=self.recording))

    def memory(nbytes: int) -> Any:
        cupti.call("cudaMalloc")
        return idle_gpu._Memory(nbytes)

    def stream_synchronize(pointer: int) -> None:
        cupti.call("cudaStreamSynchronize", type=types.STREAM_SYNCHRONIZE, stream_id=100 + pointer)

    with pytest.MonkeyPatch.context() as patch, idle_gpu.idle_gpu() as module:
        patch.setattr(idle_gpu._Stream, "__init__", made)
        patch.setattr(idle_gpu._Stream, "wait_event", wait_event)
        patch.setattr(idle_gpu._Event, "record", record)
        patch.setattr(idle_gpu._Event, "synchronize", synchronize)
        patch.setattr(idle_gpu._Event, "done", property(done))
        patch.setattr(idle_gpu._Graph, "launch", lambda self, stream: cupti.call("cudaGraphLaunch"))
        cuda = vars(sys.modules["cupy.cuda"])
        cuda["Memory"] = memory
        cuda["runtime"].streamSynchronize = stream_synchronize
        cuda["runtime"].deviceSynchronize = lambda: cupti.call("cudaDeviceSynchronize", type=types.CONTEXT_SYNCHRONIZE)
        cuda["runtime"].memcpy = lambda target, *rest: cupti.copied("cudaMemcpy", target)
        cuda["runtime"].memcpyAsync = lambda target, *rest: cupti.copied("cudaMemcpyAsync", target)
        driver = SimpleNamespace(
            CUstream=int,
            cuStreamSynchronize=lambda pointer: cupti.call(
                "cuStreamSynchronize", type=types.STREAM_SYNCHRONIZE, stream_id=100 + pointer
            ),
        )
        sys.modules["cuda.bindings"].driver = driver  # type: ignore[attr-defined]
        package = ModuleType("cupti")
        package.cupti = cupti  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "cupti", package)
        yield module, cupti
