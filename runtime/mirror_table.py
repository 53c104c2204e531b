"""MirrorTable: the one owner of every array that a step reads or writes on both sides of the host/device line.

Graphs borrow the device copies and say by name what they read and write. Before a launch the table checks their tags, afterwards
it moves them: `GraphLibrary(..., before_launch=table.before_launch, after_launch=table.after_launch)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from runtime.device import Device, Stream
from runtime.mirror import MirroredBuffer
from runtime.mirror_counters import MirrorCounters
from runtime.mirror_errors import MirrorError, MovedBufferError, PinnedBufferError, TwoWritersError
from runtime.mirror_memory import MappedMemory, Memory, TwinMemory
from runtime.mirror_pack import MirrorPack
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_report import describe
from runtime.mirror_uses import Adopted, Declared, Uses
from runtime.staging import OutcomeRing
from runtime.truth import Truth


class MirrorTable:
    """Buffers, packs and rings of one engine, by name.

    Args:
        device: where the arrays are allocated.
        policy: see runtime/mirror_policy.resolve_policy.
        stream: the compute stream that graphs are launched on.
        steps_in_flight: steps queued and not collected, the one being prepared included.
        poison: fill the host copy of every buffer that the device overtakes.
    """

    def __init__(
        self, device: Device, policy: MirrorPolicy, stream: Stream, *, steps_in_flight: int, poison: bool = False
    ) -> None:
        if steps_in_flight < 1:
            raise MirrorError(f"steps_in_flight = {steps_in_flight}: the step being prepared is one; pass at least 1")
        self.device, self.policy, self.stream = device, policy, stream
        self.steps_in_flight, self.poison = steps_in_flight, poison
        self.buffers: dict[str, MirroredBuffer] = {}
        self.packs: dict[str, MirrorPack] = {}
        self.rings: dict[str, OutcomeRing] = {}
        self._adopted: dict[Hashable, Adopted] = {}
        # Of work by what it reads and writes: all of it, and what has to be checked once that has passed.
        self._eager_uses: dict[tuple[frozenset[str], frozenset[str]], tuple[Uses, Uses]] = {}
        self._resizes = 0

    # Contents

    def create(
        self,
        name: str,
        shape: tuple[int, ...],
        truth: Truth,
        dtype: npt.DTypeLike = np.int32,
        *,
        apart: bool = False,
        diffs: bool = False,
    ) -> MirroredBuffer:
        """A buffer.

        apart: two copies under either policy, because the device applies in its own time what the host has written (carry()).
        diffs: apart, and the host's writes are kept as (row, column, value) for take_diffs().
        """
        self._refuse_taken(name)
        self._eager_uses.clear()
        memory = self._memory(name, shape, dtype, apart=apart or diffs)
        buffer = self.buffers[name] = MirroredBuffer(memory, name, truth, poison=self.poison, diffs=diffs)
        return buffer

    def pack(self, name: str, fields: Mapping[str, tuple[int, ...]], *, depth: int | None = None) -> MirrorPack:
        """Host-written int32 buffers that travel together. Fields are found by name in the table as well.

        depth: uploads that may be in flight; one a step is enough for the steps in flight, a pack of admission records needs more.
        """
        for taken in (name, *fields):
            self._refuse_taken(taken)
        self._eager_uses.clear()
        steps = self.steps_in_flight
        depth = steps + 1 if depth is None else depth
        pack = MirrorPack(self.device, name, fields, depth=depth, steps_in_flight=steps, policy=self.policy)
        self.packs[name] = pack
        return pack

    def outcomes(self, name: str, shape: tuple[int, ...], *, depth: int | None = None) -> OutcomeRing:
        """The way back of a step's results."""
        self._refuse_taken(name)
        steps = self.steps_in_flight
        ring = OutcomeRing(
            self.device, name, shape, depth=steps if depth is None else depth, steps_in_flight=steps, policy=self.policy
        )
        self.rings[name] = ring
        return ring

    def __getitem__(self, name: str) -> MirroredBuffer:
        """A buffer, or a field of a pack. MirrorError for an unknown name."""
        found = self.buffers.get(name)
        if found is not None:
            return found
        for pack in self.packs.values():
            if name in pack.fields:
                return pack.fields[name]
        known = ", ".join(sorted([*self.buffers, *(field for pack in self.packs.values() for field in pack.fields)]))
        raise MirrorError(f"no mirrored buffer is named {name}; known: {known or 'none'}")

    def resize(self, name: str, shape: tuple[int, ...]) -> None:
        """Give a buffer another shape at another address; both copies start anew.

        Raises PinnedBufferError when a graph holds the address.
        """
        buffer = self[name]
        if name not in self.buffers:
            raise MirrorError(f"{name}: a field of a pack cannot be resized alone; make the pack for the largest step")
        buffer.refuse_pinned(f"resized to {list(shape)}")
        # The old memory goes first: its name is taken on the device until then.
        buffer.memory.free()
        buffer.move_to(self._memory(name, shape, buffer.dtype, apart=not buffer.memory.mapped))
        self._resizes += 1
        self._eager_uses.clear()

    # Graphs

    def adopt(self, graph: Declared) -> frozenset[str]:
        """Pin what `graph` touches and remember where it is. Call it once for each graph, right after its capture.

        Returns the names that are not the table's: weights, caches, scratch.
        Raises TwoWritersError when the graph writes a pack.
        """
        uses = self._uses(graph.key, graph.reads, graph.writes)
        for buffer in uses.buffers():
            buffer.pin(graph.key)
        self._adopted[graph.key] = Adopted.of(graph, uses, self._resizes)
        return (graph.reads | graph.writes).difference(self.buffers, self.packs, self.rings)

    def release(self, graph: Declared) -> None:
        """The graph is gone, or will be captured again: its buffers may move."""
        adopted = self._adopted.get(graph.key)
        if adopted is not None:
            for buffer in adopted.buffers:
                buffer.unpin(graph.key)

    def before_launch(self, graph: Declared) -> None:
        """Check what `graph` reads and writes. Nothing moves yet.

        Raises:
            MovedBufferError: a buffer is not where it was when the graph was captured, or the graph was never adopted.
            StaleReadError: the host copy of what it reads is newer and was neither uploaded nor staged.
            TwoWritersError: it would write over newer host values.
        """
        adopted = self._adopted.get(graph.key)
        if adopted is None or adopted.graph is not graph:
            raise MovedBufferError(f"{graph.key} was not adopted: nobody knows which arrays it was captured for; adopt() it first")
        adopted.refuse_moved(self._resizes)
        self._check(graph.key, adopted.to_check)
        if adopted.to_check is adopted.uses:
            adopted.to_check = adopted.uses.changeable()

    def after_launch(self, graph: Declared) -> None:
        """`graph` was queued on the compute stream: move the tags of what it wrote, guard what it reads."""
        self._move(graph.key, self._adopted[graph.key].uses)

    @contextmanager
    def eager(self, writer: str, *, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Iterator[None]:
        """Work that the body queues on the compute stream outside any graph: an admission, a first fill.

        Checks before the body what before_launch checks; moves the tags after it, unless it raised.
        """
        names = frozenset(reads), frozenset(writes)
        known = self._eager_uses.get(names)
        if known is None:
            uses = self._uses(writer, *names)
            self._check(writer, uses)
            self._eager_uses[names] = uses, uses.changeable()
        else:
            uses, to_check = known
            self._check(writer, to_check)
        yield
        self._move(writer, uses)

    def _check(self, key: Hashable, uses: Uses) -> None:
        stream = self.stream
        for buffer, applies in uses.reads:
            tag = buffer.tag
            # Nearly always the copies are alike and the upload, if it is in flight, is ahead on this very stream.
            alike = tag.host_version == tag.device_version > 0 and (tag.upload is None or tag.upload.stream is stream)
            if not alike:
                tag.check_device_read(key, stream, applies)
        for buffer in uses.writes:
            buffer.check_device_write(key)

    def _move(self, key: Hashable, uses: Uses) -> None:
        for tag in uses.counted:
            tag.device_version += 1
            tag.device_writer = key
        for buffer in uses.told:
            buffer.overtaken(key)
        for buffer in uses.guarded:
            buffer.memory.consumed(self.stream)

    def poison_when_overtaken(self, name: str) -> None:
        """Fill the host copy of `name` with a sentinel whenever the device overtakes it (the input ids after a combine).

        Said before any graph that writes it is adopted: which launches have to poison is settled then.

        Raises:
            PinnedBufferError: one was.
        """
        buffer = self[name]
        for key, adopted in self._adopted.items():
            if buffer in adopted.uses.writes:
                raise PinnedBufferError(
                    f"{name} cannot be poisoned now: {key} writes it and was adopted; poison it first, or release({key})"
                )
        buffer.poison = True
        self._eager_uses.clear()

    # Report

    @property
    def counters(self) -> MirrorCounters:
        return MirrorCounters.total([buffer.counters for buffer in self._every()] + [pack.counters for pack in self.packs.values()])

    @property
    def nbytes(self) -> int:
        """On both sides, rings included."""
        return sum(owner.nbytes for owner in self._owners())

    def describe(self) -> str:
        return describe(self)

    __str__ = describe

    def close(self) -> None:
        """Wait for the device, then free everything. Idempotent."""
        if not (self.buffers or self.packs or self.rings):
            return
        # Before anything is freed: a copy that is still queued would read or write freed memory.
        self.device.synchronize()
        for owner in self._owners():
            owner.free()
        for contents in (self.buffers, self.packs, self.rings, self._adopted, self._eager_uses):
            contents.clear()

    def _owners(self) -> list[Memory | MirrorPack | OutcomeRing]:
        return [*(buffer.memory for buffer in self.buffers.values()), *self.packs.values(), *self.rings.values()]

    def _every(self) -> list[MirroredBuffer]:
        return [*self.buffers.values(), *(field for pack in self.packs.values() for field in pack.fields.values())]

    def _behind(self, names: frozenset[str]) -> tuple[MirroredBuffer, ...]:
        found: list[MirroredBuffer] = []
        for name in sorted(names):
            if name in self.buffers:
                found.append(self.buffers[name])
            elif name in self.packs:
                found.extend(self.packs[name].fields.values())
        return tuple(found)

    def _uses(self, key: Hashable, reads: frozenset[str], writes: frozenset[str]) -> Uses:
        packs = sorted(writes & self.packs.keys())
        if packs:
            raise TwoWritersError(f"{key} writes {', '.join(packs)}: only the host writes a pack, by upload(step, stream)")
        read, written = self._behind(reads), self._behind(writes)
        guarded = tuple(buffer for buffer in read if buffer.memory.mapped and buffer.truth is not Truth.DEVICE_EXACT)
        return Uses(tuple((buffer, buffer in written) for buffer in read), written, guarded)

    def _memory(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike, *, apart: bool) -> Memory:
        if self.policy.integrated and not apart:
            return MappedMemory(self.device, name, shape, np.dtype(dtype))
        return TwinMemory(self.device, name, shape, np.dtype(dtype), self.steps_in_flight, self.policy)

    def _refuse_taken(self, name: str) -> None:
        fields = {field for pack in self.packs.values() for field in pack.fields}
        if name in self.buffers or name in self.packs or name in self.rings or name in fields:
            raise MirrorError(f"{name}: the table has it already; names are how graphs say what they touch")
