"""The two rings of a step: staged inputs on their way to the device, outcomes on their way back.

Both rotate by step number, and neither waits silently: a block that the device may still use is refused. Nothing here is a
stream synchronisation; the one wait of a steady step is `OutcomeRing.collect`, for one event.

A captured graph has frozen addresses, so it works on one array that does not rotate. The copy between that array and the block of
the step is queued beside the graph, by the host, which knows the step. A cursor in device memory could choose the block inside the
graph, but whatever launches a graph outside a step (warm-up, a benchmark) would move it on unseen, and to the race detector every
launch would touch every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from graphs.launch import Array, Event
from runtime.device import Device, HostArray, Stream
from runtime.landing import LandingRing, PendingRead, blocks_of
from runtime.mirror_errors import MirrorError, OutcomeError, StagingBusyError
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_values import HostIndex
from runtime.repeated_copies import RepeatedCopies


@dataclass
class _Block:
    """One block of a staging ring, and how far its present step has got."""

    memory: HostArray
    consumed: Event
    step: int | None = None
    submitted: bool = False  # its copy is queued, and `consumed` recorded behind it


class _LeadingRows:
    """Views of the first rows of arrays, each cut once: callers ask for few lengths."""

    def __init__(self) -> None:
        self._known: dict[tuple[Array, int], Array] = {}

    def of(self, array: Array, rows: int) -> Array:
        key = array, rows
        view = self._known.get(key)
        if view is None:
            view = self._known[key] = array[:rows]
        return view


class StagingBlock:
    """What the host may write for one step, until it is submitted."""

    def __init__(self, ring: str, step: int, block: _Block) -> None:
        self._ring, self._step, self._block = ring, step, block

    def write(self, values: npt.ArrayLike, index: HostIndex = ...) -> None:
        """Raises StagingBusyError once the block was submitted: a queued copy may read it at any time."""
        if self._block.step != self._step or self._block.submitted:
            raise StagingBusyError(
                f"{self._ring}: the block of step {self._step} was submitted and is the device's now; write to next(step) instead"
            )
        self._block.memory.write(values, index)


class StagingRing:
    """Page-locked blocks that the host fills while the device still reads the blocks of earlier steps.

    discrete    the blocks are pinned; `submit` queues the copy of one over the bus into device memory.
    integrated  the blocks are mapped; `submit` queues the same move inside the shared memory.

    Args:
        name, shape, dtype: of one block.
        depth: blocks; must exceed `steps_in_flight`, so that the block of step N is never wanted while N may run.
        steps_in_flight: steps that may be queued and not collected, the one being prepared included.

    Raises MirrorError for a ring shallower than that.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike = np.int32,
        *,
        depth: int,
        steps_in_flight: int,
        policy: MirrorPolicy,
    ) -> None:
        if steps_in_flight < 1:
            raise MirrorError(f"{name}: steps_in_flight = {steps_in_flight}: the step being prepared is one; pass at least 1")
        if depth <= steps_in_flight:
            raise MirrorError(
                f"{name}: ring depth = {depth} must exceed steps_in_flight = {steps_in_flight}, or a block is written that a "
                f"queued step still reads; use depth >= {steps_in_flight + 1}"
            )
        self.name, self.depth, self.steps_in_flight, self.policy = name, depth, steps_in_flight, policy
        self._device = device
        allocate = device.mapped if policy.integrated else device.pinned
        self._memory = allocate(name, (depth, *shape), np.dtype(dtype))
        self._blocks = [
            _Block(memory, device.event(f"{name}_consumed_{i}")) for i, memory in enumerate(blocks_of(self._memory))
        ]
        self._copies, self._views = RepeatedCopies(), _LeadingRows()
        self._next = 0

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def next(self, step: int) -> StagingBlock:
        """The block of `step` = 0, 1, 2, ... for the host to fill. Never waits.

        Raises:
            MirrorError: steps are not consecutive (the device counts them by itself).
            StagingBusyError: the device may still read what the block holds.
        """
        if step != self._next:
            raise MirrorError(f"{self.name}: step = {step}, but the next block is step {self._next}'s; stage every step, once")
        block = self._blocks[step % self.depth]
        self._refuse_busy(step, block)
        block.step, block.submitted = step, False
        self._next += 1
        return StagingBlock(self.name, step, block)

    def _refuse_busy(self, step: int, block: _Block) -> None:
        if block.step is None:
            return
        where = f"{self.name}: step {step} needs the block of step {block.step}"
        limits = f"depth = {self.depth}, steps_in_flight = {self.steps_in_flight}"
        if not block.submitted:
            raise MirrorError(f"{where}, which was staged and never submitted ({limits}); submit({block.step}) first")
        if not block.consumed.query():
            raise StagingBusyError(
                f"{where}, which the device may still read ({limits}); collect step {block.step} first, or call wait({block.step})"
            )

    def submit(self, step: int, stream: Stream, destination: Array, rows: int | None = None) -> Event:
        """Hand the block over: queue the copy of its first `rows` along the first axis, all by default, into those of `destination`
        [*shape] in device memory.

        Work queued on `stream` from now on sees the values; another stream first waits for the event that is returned.

        Raises MirrorError when the block of `step` was submitted before or is not staged.
        """
        block = self._block(step)
        if block.submitted:
            raise MirrorError(f"{self.name}: step {step} was submitted before; stage its successor with next({self._next})")
        source: Array = block.memory
        if rows is not None:
            destination, source = self._views.of(destination, rows), self._views.of(source, rows)
        self._copies.queue(stream, destination, source)
        stream.record(block.consumed)
        block.submitted = True
        return block.consumed

    def released(self, step: int) -> bool:
        """Has the device finished with the block of `step`? True as well when a later step has it. Never waits."""
        if not 0 <= step < self._next:
            raise MirrorError(f"{self.name}: step {step} was not staged yet; step {self._next} is next")
        block = self._blocks[step % self.depth]
        return block.step != step or (block.submitted and block.consumed.query())

    def wait(self, step: int) -> None:
        """Block the host until the device has finished with the block of `step`: for steps whose outcome nobody collects.

        Raises MirrorError when there is nothing to wait for, because the block was not submitted.
        """
        block = self._block(step)
        if not block.submitted:
            raise MirrorError(f"{self.name}: step {step} was not submitted, so the device never finishes with it")
        block.consumed.synchronize()

    def _block(self, step: int) -> _Block:
        block = self._blocks[step % self.depth]
        if block.step != step:
            raise MirrorError(f"{self.name}: step {step} is not staged (its block holds step {block.step})")
        return block

    def free(self) -> None:
        self._device.free(self._memory)


class OutcomeRing:
    """What the device found out in each step, collected by the host one step later.

    The kernels of every step write `array` [1, *shape] (kernels/publish.publish). `submit` moves it out of the next step's way:

    discrete    compute copies it into block step % depth of a device array, the copy stream carries that into pinned memory behind
                an event. The blocks rotate because compute fills the next one while the copy stream still reads.
    integrated  compute copies it into block step % depth of a mapped array; the host waits for that event and reads in place.

    Args:
        name: of `array`. shape, dtype: of one step's outcome.
        depth: at least `steps_in_flight`: a block is used again once the host has collected it.

    Raises MirrorError for a ring shallower than that.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike = np.int32,
        *,
        depth: int,
        steps_in_flight: int,
        policy: MirrorPolicy,
    ) -> None:
        if steps_in_flight < 1:
            raise MirrorError(f"{name}: steps_in_flight = {steps_in_flight}: the step being prepared is one; pass at least 1")
        if depth < steps_in_flight:
            raise MirrorError(
                f"{name}: ring depth = {depth} is below steps_in_flight = {steps_in_flight}, a step would overwrite an outcome "
                f"that was not collected; use depth >= {steps_in_flight}"
            )
        self.name, self.depth, self.policy = name, depth, policy
        self._device = device
        self.array: Array = device.array(name, (1, *shape), np.dtype(dtype))
        self._blocks: Sequence[Array]
        self._landings: LandingRing | None = None
        if policy.integrated:
            self._memory: Array = device.mapped(f"{name}_blocks", (depth, *shape), np.dtype(dtype))
        else:
            self._memory = device.array(f"{name}_blocks", (depth, *shape), np.dtype(dtype))
            self._landings = LandingRing(device, f"{name}_landing", shape, np.dtype(dtype), depth)
        self._blocks = [self._memory[i : i + 1].reshape(shape) for i in range(depth)]
        self._published = self.array.reshape(shape)
        self._copies = RepeatedCopies()
        self._produced = [device.event(f"{name}_produced_{i}") for i in range(depth)]
        self._pending: dict[int, PendingRead] = {}
        self._next = 0
        self._collected = 0

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + self._memory.nbytes + (self._landings.nbytes if self._landings is not None else 0)

    @property
    def uncollected(self) -> int:
        """Steps submitted and not collected."""
        return self._next - self._collected

    def submit(self, step: int, compute: Stream, copy: Stream) -> None:
        """The kernels of `step` = 0, 1, 2, ... were queued on `compute`: start their outcome on its way. Waits for nothing.

        integrated: `copy` is not used.

        Raises:
            MirrorError: steps are not consecutive.
            OutcomeError: every block holds an outcome that the host has not collected.
        """
        if step != self._next:
            raise MirrorError(f"{self.name}: step = {step}, but step {self._next} is next; submit every step, once")
        if self.uncollected >= self.depth:
            raise OutcomeError(
                f"{self.name}: step {step} would overwrite the outcome of step {self._collected}, which was not collected "
                f"(depth = {self.depth}); collect({self._collected}) first"
            )
        block, produced = self._blocks[step % self.depth], self._produced[step % self.depth]
        self._copies.queue(compute, block, self._published)
        compute.record(produced)
        if self._landings is None:
            self._pending[step] = PendingRead(self.name, step, produced, cast(HostArray, block))
        else:
            copy.wait(produced)
            self._pending[step] = self._landings.receive(copy, block, step)
        self._next += 1

    def collect(self, step: int) -> npt.NDArray[Any]:
        """Block the host until the outcome of `step` has arrived (one event, no stream); an array [*shape] of the caller's own.

        Raises OutcomeError: not submitted yet, collected before, or an earlier step comes first.
        """
        if step < self._collected:
            raise OutcomeError(f"{self.name}: step {step} was collected before; keep the array that the first collect() returned")
        if step not in self._pending:
            raise OutcomeError(f"{self.name}: step {step} was not submitted; queue the step and submit({step}) first")
        if step > self._collected:
            raise OutcomeError(f"{self.name}: step {self._collected} comes before step {step}; collect in order")
        values = self._pending[step].take()
        del self._pending[step]
        self._collected += 1
        return values

    def free(self) -> None:
        self._device.free(self.array)
        self._device.free(self._memory)
        if self._landings is not None:
            self._landings.free()
