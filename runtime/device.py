"""What the runtime needs of a device, and how to open one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt
from numba.core import config as numba_config

from graphs.cpu_executor import CpuExecutor
from graphs.launch import Array, Event, Grid, Launcher
from graphs.simulator_executor import SimulatorExecutor
from kernels.lang import Kernel
from runtime.cuda_probe import cuda_unavailable
from runtime.device_counters import DeviceCounters
from runtime.errors import DeviceError
from runtime.virtual_device import VirtualDevice
from runtime.virtual_queue import Schedule

DeviceKind: TypeAlias = Literal["auto", "cpu", "simulator", "cuda"]


class HostArray(Array, Protocol):
    """Page-locked memory: pinned (copies only) or mapped (kernels see it too). The host goes through these two calls."""

    def write(self, values: npt.ArrayLike, index: Any = ...) -> None: ...

    def read(self, index: Any = ...) -> npt.NDArray[Any]:
        """A copy of self[index]."""
        ...


class CapturedGraph(Protocol):
    """A graph with every argument bound. It keeps nothing alive: its arrays must outlive it."""

    name: str
    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def num_nodes(self) -> int: ...

    def launch(self, stream: Any) -> None: ...

    def dot(self) -> str: ...


class Capture(Protocol):
    """A context in which a stream records instead of running."""

    @property
    def graph(self) -> CapturedGraph: ...


class Stream(Launcher, Protocol):
    """A queue of work that runs in order; streams are ordered by events alone."""

    name: str

    def prepare_copy(self, dst: Array, src: Array) -> Callable[[], None]:
        """A call that queues dst[...] = src each time: for copies that every step repeats."""
        ...

    def prepare_launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> Callable[[], None]:
        """A call that queues this launch each time: for launches outside graphs that come again."""
        ...

    def let_fork(self) -> None:
        """From now on `fork` leads to a stream beside this one."""
        ...

    def synchronize(self) -> None: ...

    def query(self) -> bool: ...

    def capture(self, name: str = "graph") -> AbstractContextManager[Capture]: ...


class Device(Protocol):
    """Memory, streams and events. Arguments and errors: runtime.virtual_device.VirtualDevice."""

    name: str
    integrated: bool
    can_map: bool
    has_clock: bool
    """Events can be made with `timing=True`, and then tell milliseconds_since another."""
    overlaps: bool
    """A kernel that can be started early is started while the one before it still runs (docs/launches.md)."""

    @property
    def failed(self) -> bool:
        """The device stopped at an error and takes no more work; it can only be closed."""
        ...

    counters: DeviceCounters

    @property
    def description(self) -> str:
        """What `draftgraph info` says of it."""
        ...

    def free_bytes(self) -> int:
        """Bytes that device.array can still get."""
        ...

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array: ...

    def constant(self, name: str, values: npt.ArrayLike) -> Array: ...

    def seal(self, array: Any) -> None:
        """Wait for everything, then make an array that kernels have written a constant."""
        ...

    def pinned(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> HostArray: ...

    def mapped(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> HostArray: ...

    def free(self, array: Any) -> None: ...

    def download(self, array: Any) -> npt.NDArray[Any]: ...

    def upload(self, array: Any, values: npt.ArrayLike) -> None: ...

    def stream(self, name: str) -> Stream: ...

    def event(self, name: str = "event") -> Event: ...

    def synchronize(self) -> None: ...

    def allocated_bytes(self) -> dict[Any, int]: ...

    def close(self) -> None: ...


def resolve_kind(kind: DeviceKind) -> tuple[Literal["cpu", "simulator", "cuda"], str]:
    """Which device `kind` means on this machine, and why: the text that `draftgraph info` prints."""
    if kind != "auto":
        return kind, "asked for"
    missing = cuda_unavailable()
    return ("cuda", "a GPU and CuPy were found") if missing is None else ("cpu", missing)


def refuse_absent_gpu(kind: DeviceKind) -> None:
    """DeviceError: a GPU is asked for, and none can be opened here: why, and what to do."""
    if kind == "cuda" and (missing := cuda_unavailable()) is not None:
        raise DeviceError(f"device = cuda: {missing}; or set device = cpu")


def refuse_disabled_compiler() -> None:
    """DeviceError: Numba compiles nothing in this process."""
    if numba_config.DISABLE_JIT:
        raise DeviceError("NUMBA_DISABLE_JIT = 1: what a CPU computes here is compiled; unset it")


def open_device(
    kind: DeviceKind = "auto",
    *,
    schedule: Schedule = "lazy",
    seed: int = 0,
    detect: bool = True,
    poison: bool = False,
    overlap: bool = True,
) -> Device:
    """Open a device.

    Args:
        kind: cpu, simulator (needs NUMBA_ENABLE_CUDASIM=1), cuda, or auto: cuda where it is usable, else cpu.
        schedule, seed, detect: of the virtual device; a GPU has its own order.
        poison: fill fresh memory with what nobody should read.
        overlap: of a GPU: let kernels that can be started early be started early.

    Raises:
        DeviceError: the kind is unknown, or cannot be opened here.
    """
    resolved, _ = resolve_kind(kind)
    if resolved != "cuda":
        refuse_disabled_compiler()
    if resolved == "cpu":
        return VirtualDevice(CpuExecutor(), schedule=schedule, seed=seed, detect=detect, poison=poison)
    if resolved == "simulator":
        try:
            executor = SimulatorExecutor()
        except RuntimeError as error:
            raise DeviceError(str(error)) from error
        return VirtualDevice(executor, schedule=schedule, seed=seed, detect=detect, poison=poison)
    if resolved == "cuda":
        refuse_absent_gpu(kind)
        try:
            from runtime.cuda_device import CudaDevice  # imports CuPy and nvmath-python, which most machines lack
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceError(
                f"device = cuda: a library of it cannot be loaded ({error}); install one of draftgraph[cu12] and draftgraph[cu13] "
                "anew, or set device = cpu"
            ) from error
        return CudaDevice(poison=poison, overlap=overlap)
    raise DeviceError(f"device = {kind!r}; use auto, cpu, simulator or cuda")
