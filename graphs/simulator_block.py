"""One block of the simulator: its threads take turns between barriers, so that a launch is the same each time it runs.

Numba's own simulator lets them all run at once and asks again and again who waits. Here one thread runs to the barrier, then the
next; the order turns round at each barrier and with each block: where a barrier is missing, some threads read too early and some
too late.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAModule


class SimulatedCuda(FakeCUDAModule):
    """What a kernel finds under the name `cuda`: the thread whose turn it is, and the memory of its block."""

    threadIdx = Dim3(0, 0, 0)  # noqa: N815 - CUDA's names
    blockIdx = Dim3(0, 0, 0)  # noqa: N815

    def __init__(self) -> None:
        super().__init__((1, 1, 1), (1, 1, 1), 0)
        self._shared = SharedMemory()
        self._turns: Turns | None = None

    def launch(self, body: Callable[[], None], grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        """Run `body` as every thread of every block. What a thread raises is raised, its place added to the message. Infinity
        and NaN are nothing to warn of, as on a GPU."""
        self.gridDim, self.blockDim = Dim3(*grid), Dim3(*block)
        threads = [Dim3(x, y, z) for z in range(block[2]) for y in range(block[1]) for x in range(block[0])]
        blocks = [Dim3(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
        try:
            if len(threads) == 1:
                self.threadIdx = threads[0]
                for place in blocks:
                    self.begin(place)
                    with np.errstate(all="ignore"):
                        body()
            else:
                self._turns = Turns(self, body, threads)
                self._turns.run(blocks)
        except Exception as error:
            error.args = (f"block {self.blockIdx}, thread {self.threadIdx}: {error}",)
            raise
        finally:
            self._turns = None

    def begin(self, block: Dim3) -> None:
        """What threads run from now on belongs to `block`."""
        self.blockIdx = block
        self._shared.clear()

    def syncthreads(self) -> None:
        if self._turns is not None:
            caller = sys._getframe(1)
            self._turns.wait((caller.f_code, caller.f_lasti))


class SharedMemory:
    """cuda.shared: an array for each line that asks for one, NaN or -7 until somebody stores to it."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[CodeType, int], npt.NDArray[Any]] = {}

    def clear(self) -> None:
        """Another block begins."""
        self._arrays.clear()

    def array(self, shape: Any, dtype: Any) -> npt.NDArray[Any]:
        caller = sys._getframe(1)
        line = (caller.f_code, caller.f_lineno)
        array = self._arrays.get(line)
        if array is None:
            array = np.empty(shape, dtype)
            array.fill(np.nan if array.dtype.kind == "f" else np.array(-7).astype(array.dtype))
            self._arrays[line] = array
        return array


class _StoppedError(Exception):
    """Another thread of the block has failed: this one ends as well."""


class Turns:
    """Threads of a block, one of them running.

    Raises:
        RuntimeError: threads wait at different barriers.
    """

    def __init__(self, cuda: SimulatedCuda, body: Callable[[], None], threads: Iterable[Dim3]) -> None:
        self._cuda = cuda
        self._body = body
        self._workers = [_Worker(self, place) for place in threads]
        self._ready: list[_Worker] = []  # still to run up to the next barrier, the next one last
        self._waiting: list[_Worker] = []  # at the barrier, as they came
        self._running = self._workers[0]
        self._ended = threading.Lock()
        self._ended.acquire()
        self.stopping = False
        self.failure: Exception | None = None

    def run(self, blocks: list[Dim3]) -> None:
        """Every thread of every block, block after block."""
        for worker in self._workers:
            worker.start()
        try:
            for number, block in enumerate(blocks):
                self._cuda.begin(block)
                self._ready = self._workers[:] if number % 2 else self._workers[::-1]
                self._pass_on()
                self._ended.acquire()
                if self.failure is not None:
                    raise self.failure
        finally:
            self.stopping = True
            for worker in self._workers:
                with suppress(RuntimeError):  # it has its turn already: Ctrl-C came while it ran
                    worker.turn.release()
            for worker in self._workers:
                worker.join()

    def body(self) -> None:
        """The thread whose turn it is runs, then the turn is the next one's."""
        try:
            with np.errstate(all="ignore"):
                self._body()
            self._pass_on()
        except _StoppedError:
            return
        except Exception as error:
            self.failure = error
            self._ended.release()

    def wait(self, barrier: tuple[CodeType, int]) -> None:
        """The running thread has come to a barrier."""
        worker = self._running
        worker.barrier = barrier
        self._waiting.append(worker)
        self._pass_on()
        worker.turn.acquire()
        if self.stopping:
            raise _StoppedError

    def _pass_on(self) -> None:
        if not self._ready:
            self._ready, self._waiting = self._waiting, []
            if len({worker.barrier for worker in self._ready}) > 1:
                places = {f"{worker.barrier[0].co_name} at byte {worker.barrier[1]}" for worker in self._ready if worker.barrier}
                raise RuntimeError(f"threads wait at different barriers: {', '.join(sorted(places))}")
        if not self._ready:
            self._ended.release()
            return
        self._running = self._ready.pop()
        self._cuda.threadIdx = self._running.place
        self._running.turn.release()


class _Worker(threading.Thread):
    """One thread of a block, of all blocks of a launch in turn."""

    def __init__(self, turns: Turns, place: Dim3) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.turn = threading.Lock()
        self.turn.acquire()
        self.barrier: tuple[CodeType, int] | None = None
        self._turns = turns

    def run(self) -> None:
        while not self._turns.stopping:
            self.turn.acquire()
            if not self._turns.stopping:
                self._turns.body()
