"""The device of machines without a GPU: streams, events, copies and graphs over NumPy memory, with their hazards visible.

`draftgraph run` on a CPU uses it with the lazy schedule; engine tests also run it eagerly and in random legal orders. Host and
device memory are apart, work runs when somebody waits, and vector clocks report whatever nothing orders. One host thread only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphs.executor import Executor
from graphs.launch import Array
from runtime.device_state import DeviceState
from runtime.errors import DeviceError
from runtime.race_detector import Access, Clock, Hazard, RaceDetector, UseAfterFree, join
from runtime.virtual_capture import VirtualCapture
from runtime.virtual_memory import Allocation, Kind, MappedArray, PinnedArray, VirtualArray, as_storable, poison
from runtime.virtual_queue import OperationQueue, Schedule
from runtime.virtual_site import Origin, call_site
from runtime.virtual_stream import VirtualEvent, VirtualStream


class VirtualDevice(DeviceState[VirtualCapture]):
    """Opened once, closed once; usable as a context.

    Args:
        executor: turns launches into calls.
        schedule: eager, lazy or random: see runtime.virtual_queue.
        seed: of the random schedule.
        detect: look for races. Without it a missing wait only shows as wrong data.
        poison: fill fresh and freed memory, and destinations of queued copies to the host, with sentinels. Without it fresh memory
            is np.empty: undefined as on a GPU, and pages of a large KV cache cost nothing until they are touched.
        on_race: "raise" at the line that completes the race, or "record" in `races`.
        integrated, can_map: what the device answers when asked whether host and device share their memory, and whether kernels can
            see page-locked memory at all.

    Attributes:
        overlaps: False: one piece of work ends before the next begins.
        has_clock: False: time on a modelled device would mean nothing.
        races: every hazard found so far.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        schedule: Schedule = "lazy",
        seed: int = 0,
        detect: bool = True,
        poison: bool = False,
        on_race: Literal["raise", "record"] = "raise",
        integrated: bool = False,
        can_map: bool = True,
    ) -> None:
        if on_race not in ("raise", "record"):
            raise DeviceError(f"on_race = {on_race!r}; use raise or record")
        super().__init__()
        self.executor = executor
        self.name = executor.name
        self.integrated, self.can_map, self.has_clock = integrated, can_map, False
        self.overlaps = False
        self.poison = poison
        self.races: list[Hazard] = []
        self.queue = OperationQueue(schedule, seed)
        self.host_clock: Clock = {}
        self.detector = RaceDetector(self.report, self.host_clock) if detect else None
        self._on_race = on_race
        self._allocations: dict[str, Allocation] = {}
        self._streams: list[VirtualStream] = []

    @property
    def description(self) -> str:
        return f"{self.executor.name} executor, {self.schedule} schedule"

    @property
    def schedule(self) -> Schedule:
        return self.queue.schedule

    @property
    def failed(self) -> bool:
        """An operation raised or was interrupted: the device takes no more work, and can only be closed."""
        return self.queue.failed

    # Memory

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> VirtualArray:
        """Device memory, undefined until something writes it."""
        return VirtualArray(*self._allocate(name, "device", shape, dtype))

    def constant(self, name: str, values: npt.ArrayLike) -> VirtualArray:
        """Read-only device memory over `values`, without a copy. The caller must not change them afterwards."""
        view = np.asarray(values).view()
        view.flags.writeable = False
        return VirtualArray(self._register(name, "constant", view), view)

    def seal(self, array: Array) -> None:
        """Wait for everything, then make an array of device memory a constant, with all its views: nothing writes it any more."""
        own = self._transfer("seal", array)
        if own.allocation.kind != "device":
            raise DeviceError(f"seal: `{array.name}` is {own.allocation.kind} memory; only device memory becomes a constant")
        own.allocation.kind = "constant"

    def pinned(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> PinnedArray:
        """Page-locked host memory, undefined until something writes it."""
        return PinnedArray(*self._allocate(name, "pinned", shape, dtype), self._check_host_access)

    def mapped(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> MappedArray:
        """Page-locked memory that kernels and the host both see, undefined until something writes it.

        DeviceError: the device cannot map.
        """
        if not self.can_map:
            raise DeviceError(f"mapped memory `{name}`: this device cannot map host memory; use mirror.policy = discrete")
        return MappedArray(*self._allocate(name, "mapped", shape, dtype), self._check_host_access)

    def free(self, array: Array) -> None:
        """End an array and all its views. UseAfterFree: freed before, or queued work may still use it."""
        allocation = self._own("free", array).allocation
        self.refuse_in_capture(f"free of `{array.name}`")
        if allocation.freed:
            raise UseAfterFree(f"`{array.name}` is freed twice")
        if self.detector is not None:
            self.detector.admit_free(self.origin("free", None), allocation)
        allocation.freed = True
        del self._allocations[allocation.name]
        if self.poison and allocation.kind != "constant":
            allocation.poison()

    def allocated_bytes(self) -> dict[Kind, int]:
        """Bytes held at present, by kind of memory. Constants count although they are shared with the caller."""
        total: dict[Kind, int] = {"device": 0, "constant": 0, "pinned": 0, "mapped": 0}
        for allocation in self._allocations.values():
            total[allocation.kind] += allocation.nbytes
        return total

    def free_bytes(self) -> int:
        """Bytes of host memory that are available."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Wait for everything, then a copy of `array`: for tests and gates, never for a step. Orders the host after all work."""
        return np.array(self._transfer("download", array).values)

    def upload(self, array: Array, values: npt.ArrayLike) -> None:
        """Wait for everything, then array[...] = values: for start-up and tests, never for a step."""
        target = self._transfer("upload", array)
        if target.allocation.kind == "constant":
            raise DeviceError(f"upload: `{array.name}` is a constant and cannot be written")
        source = as_storable(target, values)
        if source.shape != array.shape:
            raise DeviceError(f"upload: {source.shape} does not fit `{array.name}` {array.shape}")
        target.values[...] = source

    # Order

    def stream(self, name: str) -> VirtualStream:
        self._refuse_closed()
        stream = VirtualStream(self, name, len(self._streams))
        self._streams.append(stream)
        return stream

    def event(self, name: str = "event") -> VirtualEvent:
        self._refuse_closed()
        return VirtualEvent(self, name)

    def synchronize(self) -> None:
        """Block the host until everything has run."""
        self.refuse_in_capture("synchronize of the device")
        self.counters.device_synchronizes += 1
        self._drain()

    def close(self) -> None:
        """Run what is queued, then free everything. Does nothing the second time."""
        if self._closed:
            return
        self.refuse_in_capture("close of the device")
        if not self.queue.failed:
            self._drain()
        for allocation in self._allocations.values():
            allocation.freed = True
        self._allocations.clear()
        self._end()

    def __enter__(self) -> VirtualDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __str__(self) -> str:
        held = ", ".join(f"{kind} {nbytes:,} B" for kind, nbytes in self.allocated_bytes().items())
        return f"VirtualDevice({self.name}, {self.schedule}, {len(self.queue)} operations queued, {held}, {len(self.races)} races)"

    # For the other rooms of the virtual device

    def origin(self, label: str, stream: str | None) -> Origin:
        """Who does `label` now. The line of the program is looked up only when the detector is on."""
        return Origin(label, stream, call_site() if self.detector is not None else None)

    def report(self, hazard: Hazard) -> None:
        self.races.append(hazard)
        if self._on_race == "raise":
            raise hazard

    def poison_landings(self, landings: Iterable[VirtualArray]) -> None:
        """Fill destinations of copies to the host before the copies run, unless queued work still needs what is there."""
        for landing in landings:
            if not self.queue.touches(landing.allocation, landing.start, landing.stop):
                poison(landing.values)

    def _allocate(
        self, name: str, kind: Kind, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> tuple[Allocation, npt.NDArray[Any]]:
        try:
            values = np.empty(shape, dtype)
        except MemoryError as error:
            size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            raise DeviceError(
                f"{kind} memory `{name}` of {size:,} bytes does not fit; lower scheduler.max_num_batched_tokens, max_num_seqs, "
                "max_model_len or num_blocks, or use a smaller model"
            ) from error
        allocation = self._register(name, kind, values)
        if self.poison:
            allocation.poison()
        return allocation, values

    def _register(self, name: str, kind: Kind, values: npt.NDArray[Any]) -> Allocation:
        self.refuse_in_capture(f"allocation of `{name}`")
        if name in self._allocations:
            raise DeviceError(
                f"array name `{name}` is taken: graphs and reports know arrays by name; free the first or use another name"
            )
        allocation = self._allocations[name] = Allocation(self, name, kind, values)
        return allocation

    def _check_host_access(self, allocation: Allocation, start: int, stop: int, writes: bool) -> None:
        what = f"{'write' if writes else 'read'} of `{allocation.name}` by the host"
        if allocation.freed:
            raise UseAfterFree(f"{what}: it was freed")
        self.refuse_in_capture(what)
        self.queue.progress()
        if self.detector is not None:
            access = Access(allocation, start, stop, writes)
            self.detector.admit_host(self.origin(what, None), access)

    def _transfer(self, what: str, array: Array) -> VirtualArray:
        own = self._own(what, array)
        if own.allocation.freed:
            raise UseAfterFree(f"{what}: `{array.name}` was freed")
        self.refuse_in_capture(f"{what} of `{array.name}`")
        self.counters.transfers += 1
        self._drain()
        return own

    def _own(self, what: str, array: Array) -> VirtualArray:
        if not isinstance(array, VirtualArray) or array.allocation.device is not self:
            raise DeviceError(f"{what}: {array!r} is no array of this device")
        return array

    def _drain(self) -> None:
        self.queue.run_all()
        for stream in self._streams:
            join(self.host_clock, stream.clock)
