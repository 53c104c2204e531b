"""The queue of the virtual device: operations with dependencies, run in an order that the schedule allows.

eager   each operation runs when it is enqueued: what a debugger wants.
lazy    nothing runs before the host waits for it, and then only what it needs: a missing wait shows at once.
random  any legal interleaving, drawn from a seed; operations also make progress during unrelated calls of the host.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from runtime.errors import DeviceError
from runtime.race_detector import Access
from runtime.virtual_memory import Allocation
from runtime.virtual_site import Origin

Schedule: TypeAlias = Literal["eager", "lazy", "random"]


class Operation:
    """One thing that runs without interruption. `waiting` counts the dependencies that have not run."""

    __slots__ = ("accesses", "call", "dependencies", "dependents", "done", "origin", "serial", "waiting")

    def __init__(
        self, origin: Origin, call: Callable[[], None], accesses: tuple[Access, ...], dependencies: Iterable[Operation]
    ) -> None:
        self.origin, self.accesses = origin, accesses
        self.call: Callable[[], None] | None = call
        self.done = False
        self.dependencies = [operation for operation in dependencies if not operation.done]
        self.dependents: list[Operation] = []
        self.waiting = 0
        self.serial = 0


class OperationQueue:
    """Everything enqueued and not yet run.

    Args:
        schedule: see the module.
        seed: of the random schedule.

    Attributes:
        observe: hears of each operation once it has run, with its beginning and end in ns of time.perf_counter_ns.
        observe_node: the same of each node inside a replayed graph, before the operation that it belongs to.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        if schedule not in ("eager", "lazy", "random"):
            raise DeviceError(f"schedule = {schedule!r}; use eager, lazy or random")
        self.schedule = schedule
        self._random = random.Random(seed)
        self._pending: dict[Operation, None] = {}
        self._ready: list[Operation] = []  # random schedule only
        self._serial = 0
        self._failure: str | None = None
        self.observe: Callable[[Operation, int, int], None] | None = None
        self.observe_node: Callable[[Origin, int, int], None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def num_enqueued(self) -> int:
        """Operations since the queue was made, those that have run included."""
        return self._serial

    def enqueue(self, operation: Operation) -> None:
        """Take an operation, and run what the schedule runs now. Raises DeviceError after a failure."""
        self._refuse_after_failure()
        self._serial += 1
        operation.serial = self._serial
        self._pending[operation] = None
        if self.schedule == "eager":
            self._execute(operation)
            return
        operation.waiting = len(operation.dependencies)
        for dependency in operation.dependencies:
            dependency.dependents.append(operation)
        if self.schedule == "random":
            if not operation.waiting:
                self._ready.append(operation)
            self.progress()

    def run(self, targets: Iterable[Operation]) -> None:
        """Run until all of `targets` have run."""
        self._refuse_after_failure()
        needed: set[Operation] = set()
        stack = [operation for operation in targets if not operation.done]
        while stack:
            operation = stack.pop()
            if operation not in needed:
                needed.add(operation)
                stack.extend(dependency for dependency in operation.dependencies if not dependency.done)
        if self.schedule == "random":
            self._run_random(needed)
        else:
            for operation in sorted(needed, key=_serial):  # the order of enqueueing respects every dependency
                self._execute(operation)

    def run_all(self) -> None:
        self.run(list(self._pending))

    def progress(self) -> None:
        """A call of the host during which the device may get on with its work."""
        while self._ready and self._random.random() < 0.3:
            self._execute(self._draw())

    def touches(self, allocation: Allocation, start: int, stop: int) -> bool:
        """Does anything that has not run use these bytes? Looks at every pending operation."""
        return any(
            access.allocation is allocation and access.start < stop and start < access.stop
            for operation in self._pending
            for access in operation.accesses
        )

    def _run_random(self, needed: set[Operation]) -> None:
        missing = len(needed)
        while missing:
            operation = self._draw()
            if operation in needed:
                missing -= 1
            elif self._random.random() < 0.7:  # mostly leave alone what nobody waits for
                self._ready.append(operation)
                continue
            self._execute(operation)

    def _draw(self) -> Operation:
        ready = self._ready
        i = self._random.randrange(len(ready))
        ready[i], ready[-1] = ready[-1], ready[i]
        return ready.pop()

    def _execute(self, operation: Operation) -> None:
        assert operation.call is not None
        assert operation.waiting == 0
        began = 0 if self.observe is None else time.perf_counter_ns()
        try:
            operation.call()
        except Exception as error:
            self._failure = f"{operation.origin} failed: {type(error).__name__}: {error}"
            raise DeviceError(self._failure) from error
        except BaseException as interrupt:
            # Ctrl-C in the middle of an operation: half of it is done, and to run it again would do that half twice.
            self._failure = f"{operation.origin} was interrupted by {type(interrupt).__name__}"
            raise
        if self.observe is not None:
            self.observe(operation, began, time.perf_counter_ns())
        del self._pending[operation]
        operation.done = True
        # Events and streams may hold the operation for long: let go of its arrays.
        operation.call, operation.accesses = None, ()
        operation.dependencies = []
        for dependent in operation.dependents:
            dependent.waiting -= 1
            if not dependent.waiting and self.schedule == "random":
                self._ready.append(dependent)
        operation.dependents = []

    @property
    def failed(self) -> bool:
        """An operation raised: like a GPU after an error, the device takes no more work."""
        return self._failure is not None

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"the device stopped at an earlier error: {self._failure}")


def _serial(operation: Operation) -> int:
    return operation.serial
