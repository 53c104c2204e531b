"""Threads that take turns: one runs until it waits for others, then the next. A run is the same each time.

The order turns round at each meeting: where one is missing, some threads read too early and some too late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class StoppedError(Exception):
    """Another thread has failed: this one ends as well."""


class _Worker(threading.Thread):
    def __init__(self, turns: Turns, number: int) -> None:
        super().__init__(daemon=True)
        self.turns, self.number = turns, number
        self.local = SimpleNamespace()
        self.turn = threading.Lock()
        self.turn.acquire()

    def run(self) -> None:
        self.turn.acquire()
        self.turns.body(self)


class Turns:
    """Threads of one run."""

    def __init__(self) -> None:
        self._ready: deque[_Worker] = deque()
        self._living = 0
        self._ended = threading.Lock()
        self.running: _Worker
        self.failure: BaseException | None = None

    @property
    def local(self) -> SimpleNamespace:
        """What the running thread keeps for itself."""
        return self.running.local

    def run(self, function: Callable[[int], None], threads: int) -> None:
        """Call `function` with the number of each thread, and wait for them. Raises the first error of a thread; RuntimeError where
        all that are left wait."""
        self._function = function
        workers = [_Worker(self, number) for number in range(threads)]
        self._ready, self._living, self.failure = deque(workers), threads, None
        for worker in workers:
            worker.start()
        self._ended.acquire()
        self._pass_on()
        self._ended.acquire()
        if self.failure is not None:
            for worker in workers:
                if worker.turn.locked():
                    worker.turn.release()
        for worker in workers:
            worker.join()
        self._ended.release()
        if self.failure is not None:
            raise self.failure

    def body(self, worker: _Worker) -> None:
        if self.failure is not None:
            return
        try:
            self._function(worker.number)
        except StoppedError:
            return
        except BaseException as error:
            self._stop(error)
            return
        self._living -= 1
        self._pass_on()

    def park_with(self, waiting: list[_Worker]) -> None:
        """The running thread joins `waiting`, until somebody hands them to `wake`."""
        worker = self.running
        waiting.append(worker)
        self._pass_on()
        worker.turn.acquire()
        if self.failure is not None:
            raise StoppedError

    def wake(self, workers: list[_Worker]) -> None:
        """They run on in the order that the last has come first, when their turn comes."""
        self._ready.extend(reversed(workers))
        workers.clear()

    def _pass_on(self) -> None:
        if self._ready:
            self.running = self._ready.popleft()
            self.running.turn.release()
        elif self._living:
            self._stop(RuntimeError(f"{self._living} threads wait and nobody is left to come"))
        else:
            self._ended.release()

    def _stop(self, error: BaseException) -> None:
        self.failure = error
        self._ended.release()


class Meeting:
    """A barrier of `parties` threads, whose numbers follow each other, again and again: what each offers, all may see."""

    def __init__(self, turns: Turns, parties: int) -> None:
        self._turns, self._parties = turns, parties
        self._waiting: list[_Worker] = []
        self._offered: list[Any] = [None] * parties

    def wait(self, offer: Any = None, of_all: Callable[[list[Any]], Any] = lambda offered: offered) -> Any:
        """What `of_all` makes of the offers in the order of the threads; the last to come computes it."""
        worker = self._turns.running
        self._offered[worker.number % self._parties] = offer
        if len(self._waiting) + 1 < self._parties:
            self._turns.park_with(self._waiting)
            return worker.local.met
        offered, self._offered = self._offered, [None] * self._parties
        met = of_all(offered)
        for other in self._waiting:
            other.local.met = met
        self._turns.wake(self._waiting)
        return met
