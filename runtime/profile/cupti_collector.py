"""CuptiCollector: records of a GPU by CUPTI, NVIDIA's tracing library, one a replay or one a node of each replay.

It must be made before any graph is instantiated: turning on graph records afterwards, and then launching, ends the process with a
segmentation fault. So each traced pass is a process of its own. Nothing is parsed while the engine runs: one buffer takes
everything and is handed over at the flush, when the device is idle.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from runtime.errors import DeviceError
from runtime.profile.collectors import Collector
from runtime.profile.trace import Activity, Kind, Mode

BUFFER_BYTES = 64 << 20
"""About 300,000 records: more than a pass makes, so that no buffer is handed over in the middle of it."""
CLOCK_READINGS = 15
IMPORT_LIMIT_S = 60

_MISSING = (
    "CUPTI is not there ({error}); pip install draftgraph[profile], and see that libcupti of the driver's CUDA version is found "
    "(package nvidia-cuda-cupti)"
)


def missing_cupti() -> str | None:
    """Why CUPTI cannot be loaded, and what to do; None where it can. Tried in a process of its own, which nothing follows in."""
    command = [sys.executable, "-c", "from cupti import cupti"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return _MISSING.format(error=f"no end after {IMPORT_LIMIT_S} s")
    if done.returncode == 0:
        return None
    return _MISSING.format(error=done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")


def load_cupti() -> Any:
    """The module. DeviceError: it is missing, or does not find its library."""
    try:
        from cupti import cupti
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(_MISSING.format(error=error)) from error
    return cupti


def collect(cupti: Any, kinds: Iterable[int], take: Callable[[list[Any]], None]) -> None:
    """Let `take` have the records of these kinds, a buffer at a time. DeviceError: CUPTI refuses."""
    try:
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), take)
        for kind in kinds:
            cupti.activity_enable(kind)
    except cupti.cuptiError as error:
        raise DeviceError(
            f"CUPTI: {error}; end other profilers of this GPU (nsys, ncu), one may run at a time; for a driver that knows CUDA 12 "
            "and not 13, pip install 'cupti-python<13'"
        ) from error


def dropped_records(cupti: Any) -> int:
    """Records that CUPTI had no room for since it was asked last."""
    count = ctypes.c_size_t(0)
    cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
    return count.value


class CuptiCollector(Collector):
    """Collects graph records (Mode.GRAPH) or node records (Mode.NODE), and in both copies and kernels outside graphs.

    Raises:
        DeviceError: CUPTI is missing or refuses; it serves one profiler at a time.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._cupti = cupti = load_cupti()
        kinds = cupti.ActivityKind
        self._kinds = {
            int(kinds.GRAPH_TRACE): Kind.GRAPH,
            int(kinds.CONCURRENT_KERNEL): Kind.KERNEL,
            int(kinds.MEMCPY): Kind.MEMCPY,
            int(kinds.MEMSET): Kind.MEMSET,
        }
        self._records: list[tuple[Any, ...]] = []
        self._clock: list[tuple[int, int]] = []
        collect(cupti, [kind for kind in self._kinds if mode is Mode.GRAPH or kind != kinds.GRAPH_TRACE], self._take)

    def begin(self, engine: Any) -> None:
        engine.runner.device.synchronize()
        self._cupti.activity_flush_all(1)
        self._records.clear()
        self._clock.append(self._read_clocks())

    def end(self, engine: Any) -> tuple[list[Activity], int]:
        engine.runner.device.synchronize()
        self._clock.append(self._read_clocks())
        self._cupti.activity_flush_all(1)
        return [self._activity(*record) for record in self._records], dropped_records(self._cupti)

    def _take(self, activities: list[Any]) -> None:
        """Called by CUPTI with the records of a full or flushed buffer, which is used again afterwards: everything is copied."""
        for record in activities:
            kind = self._kinds.get(int(record.kind))
            if kind is None:
                continue
            name, nbytes = "", 0
            if kind is Kind.KERNEL:
                name = str(record.name)
            elif kind is Kind.MEMCPY:
                name, nbytes = self._cupti.ActivityMemcpyKind(int(record.copy_kind)).name, int(record.bytes)
            elif kind is Kind.MEMSET:
                name, nbytes = "memset", int(record.bytes)
            self._records.append(
                (kind, name, int(record.start), int(record.end), int(record.stream_id), int(record.correlation_id),
                 int(record.graph_id), nbytes)
            )  # fmt: skip

    def _activity(
        self, kind: Kind, name: str, start: int, end: int, stream: int, launch: int, graph: int, nbytes: int
    ) -> Activity:
        return Activity(kind, name, self._host_ns(start), self._host_ns(end), str(stream), launch, graph, nbytes)

    def _host_ns(self, timestamp: int) -> int:
        """On the clock of the host: a line through the readings at both ends of the pass. 0, no time at all, stays 0."""
        if timestamp == 0:
            return 0
        (host, device), (host_end, device_end) = self._clock[0], self._clock[-1]
        return host + round((timestamp - device) * (host_end - host) / (device_end - device))

    def _read_clocks(self) -> tuple[int, int]:
        """(perf_counter_ns, CUPTI's timestamp) of one moment: of several readings the one that was read fastest."""
        readings = []
        for _ in range(CLOCK_READINGS):
            early = time.perf_counter_ns()
            device = int(self._cupti.get_timestamp())
            late = time.perf_counter_ns()
            readings.append((late - early, (early + late) // 2, device))
        _, host, device = min(readings)
        return host, device
