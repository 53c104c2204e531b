"""Streams and events of a CUDA device."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

import cupy
from cupy.cuda import runtime

from graphs.cublas import Cublas
from graphs.launch import Array, Grid
from kernels.lang import Kernel, cuda
from runtime.cuda_capture import CapturedPoint, CudaCapture
from runtime.cuda_room import out_of_memory
from runtime.cuda_work import CudaWork, bind_copy, bind_fill, bind_launch, bind_product, product_matrices
from runtime.errors import DeviceError
from runtime.side_stream import SideStream

if TYPE_CHECKING:
    from runtime.cuda_device import CudaDevice
    from runtime.cuda_graph import CudaGraph


class CudaEvent:
    """A point in a stream. Without timing unless asked for: a timed event costs the device more.

    Attributes:
        recorded: does it stand for a point outside captures?
        captured: the point it stands for inside a capture.
    """

    def __init__(self, device: CudaDevice, name: str, *, timing: bool = False) -> None:
        self.device, self.name = device, name
        self.event = cupy.cuda.Event(disable_timing=not timing)
        self.recorded = False
        self.captured: CapturedPoint | None = None

    def synchronize(self) -> None:
        """Block the host until the recorded point has been reached. DeviceError: never recorded, or a capture is running."""
        device = self.device
        if device.restricted or not self.recorded:
            self._refuse("event.synchronize")
        device.counters.event_synchronizes += 1
        try:
            self.event.synchronize()
        except Exception as error:
            device.report(error, f"wait for event `{self.name}`")
            raise

    def query(self) -> bool:
        """Has the recorded point been reached? DeviceError as in `synchronize`."""
        device = self.device
        if device.restricted or not self.recorded:
            self._refuse("event.query")
        device.counters.event_queries += 1
        try:
            return bool(self.event.done)
        except Exception as error:
            device.report(error, f"query of event `{self.name}`")
            raise

    def milliseconds_since(self, earlier: CudaEvent) -> float:
        """Device time from `earlier` to this event; both were made with timing, and have been reached."""
        with self.device.reports(f"time between events `{earlier.name}` and `{self.name}`"):
            return float(cupy.cuda.get_elapsed_time(earlier.event, self.event))

    def _refuse(self, call: str) -> None:
        self.device.refuse_in_capture(f"{call} of event `{self.name}`")
        if not self.recorded:
            raise DeviceError(f"{call}: event `{self.name}` was never recorded, so it can never fire; record it on a stream first")


class PreparedWork:
    """A copy or a launch, bound to its stream for as often as it is called."""

    __slots__ = ("_frees", "_stream", "_work")

    def __init__(self, stream: CudaStream, work: CudaWork) -> None:
        self._stream, self._work, self._frees = stream, work, stream.device.frees

    def __call__(self) -> None:
        """Queue it. UseAfterFree: one of its arrays was freed; errors otherwise as of any work."""
        frees = self._stream.device.frees
        if self._frees != frees:
            self._work.refuse_freed()
            self._frees = frees
        self._stream.submit(self._work)


class CudaStream(SideStream):
    """Work in order, apart from the default stream.

    Attributes:
        stream: CuPy's stream; numba: the same for Numba's launches; pointer: its handle.
        joined: the capture that this stream takes part in, or None.
    """

    def __init__(self, device: CudaDevice, name: str) -> None:
        self.device, self.name = device, name
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self.stream.ptr)
        self.numba = cuda.external_stream(self.pointer)
        self.joined: CudaCapture | None = None
        self._before: deque[CudaWork] = deque(maxlen=2)  # since the last event or graph: see CudaWork.issue_after

    @cached_property
    def cublas(self) -> Cublas:
        """Made at the first product: its workspace is 64 MiB."""
        try:
            handle = Cublas(self.pointer, self.device.algorithms)
        except Exception as error:  # whatever the bindings make of a library that is not there
            if out_of_memory(error):
                self.device.report(error, f"start of cuBLAS on stream `{self.name}`")
            raise DeviceError(
                f"cuBLAS cannot be started on {self.device.name}: {type(error).__name__}: {error}; it comes with draftgraph[cu12] "
                "and draftgraph[cu13]: install anew the one that fits the driver"
            ) from error
        self.device.closers.append(handle.close)
        return handle

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        """Queue one kernel. Errors: see runtime.cuda_work.bind_launch."""
        self.submit(bind_launch(self, kernel, grid, block, args))

    def prepare_launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> PreparedWork:
        """A call that queues this launch each time; what `launch` would check each time is checked now."""
        return PreparedWork(self, bind_launch(self, kernel, grid, block, args))

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        """Queue out = x @ weight.T; rows from rows[0] on are computed from whatever the pads hold."""
        self.submit(bind_product(self, out, x, weight, rows))

    def product_algorithms(self, out: Array, x: Array, weight: Array) -> list[bytes]:
        """Algorithms that the library has for a product, those first in which it believes."""
        with self.device.reports("algorithms of a product"):
            return self.cublas.lt.algorithms(*product_matrices(self, out, x, weight))

    def use_algorithm(self, out: Array, x: Array, weight: Array, algorithm: bytes | None) -> None:
        """Multiply products of this kind by this algorithm from now on, on all streams of the device; None: the library's first."""
        self.device.algorithms.put(*product_matrices(self, out, x, weight), algorithm)

    def copy(self, dst: Array, src: Array) -> None:
        """Queue dst[...] = src."""
        self.submit(bind_copy(self, dst, src))

    def prepare_copy(self, dst: Array, src: Array) -> PreparedWork:
        """A call that queues dst[...] = src each time; what `copy` would check each time is checked now."""
        return PreparedWork(self, bind_copy(self, dst, src))

    def fill(self, dst: Array, value: int | float) -> None:
        """Queue dst[...] = value."""
        self.submit(bind_fill(self, dst, value))

    def record(self, event: CudaEvent) -> None:
        """Let `event` stand for the present end of this stream."""
        self._check_event(event)
        if self.joined is not None:
            self.joined.record(self, event)
            return
        if self.device.restricted:
            self.device.refuse_in_capture(f"record on stream `{self.name}`, which takes no part in it")
        self._before.clear()
        try:
            event.event.record(self.stream)
        except Exception as error:
            self.device.report(error, f"record of event `{event.name}` on stream `{self.name}`")
            raise
        event.recorded, event.captured = True, None

    def wait(self, event: CudaEvent) -> None:
        """Let everything queued later on this stream run after `event`. Draws the stream into a capture of the event."""
        self._check_event(event)
        if self.device.capturing is not None:
            self.device.capturing.wait(self, event)
            return
        if not event.recorded:
            raise DeviceError(
                f"stream `{self.name}` waits for event `{event.name}`, which was never recorded: nothing would order it"
            )
        self._before.clear()
        try:
            self.stream.wait_event(event.event)
        except Exception as error:
            self.device.report(error, f"wait of stream `{self.name}` for event `{event.name}`")
            raise

    def let_fork(self) -> None:
        """Give this stream one beside it, and make now what its products need: a capture could not."""
        super().let_fork()
        assert self._side is not None
        _ = self._side[0].cublas

    def synchronize(self) -> None:
        """Block the host until everything on this stream has run. Counted by the stream's name."""
        self.device.refuse_in_capture(f"synchronize of stream `{self.name}`")
        counters = self.device.counters
        counters.stream_synchronizes += 1
        counters.synchronizes_by_stream[self.name] += 1
        with self.device.reports(f"synchronize of stream `{self.name}`"):
            runtime.streamSynchronize(self.pointer)

    def query(self) -> bool:
        """Has everything on this stream run?"""
        self.device.refuse_in_capture(f"query of stream `{self.name}`")
        with self.device.reports(f"query of stream `{self.name}`"):
            return bool(self.stream.done)

    def capture(self, name: str = "graph") -> CudaCapture:
        """A context in which everything put on this stream is recorded instead of run. Its `.graph` is the result."""
        return CudaCapture(self, name)

    def replay(self, graph: CudaGraph) -> None:
        """Queue the whole graph. Called by graph.launch."""
        device = self.device
        self._before.clear()
        try:
            graph.executable.launch(self.stream)
        except Exception as error:
            device.report(error, f"launch of graph `{graph.name}`")
            raise
        device.counters.graph_launches += 1
        for kind, nbytes in graph.copies:
            device.count_copy(kind, nbytes)

    def submit(self, work: CudaWork) -> None:
        """Queue work that is bound to this stream."""
        device = self.device
        if self.joined is not None:
            self.joined.add(self, work)
            return
        if device.restricted:
            device.refuse_in_capture(f"{work.label} on stream `{self.name}`, which takes no part in it")
        try:
            work.issue_after(self._before)
        except Exception as error:
            device.report(error, f"{work.label} on stream `{self.name}`")
            raise
        self._before.append(work)
        if work.copy is None:
            device.counters.launches += 1
        else:
            device.count_copy(*work.copy)

    def _check_event(self, event: CudaEvent) -> None:
        if not isinstance(event, CudaEvent) or event.device is not self.device:
            raise DeviceError(f"stream `{self.name}`: {event!r} is no event of this device")
