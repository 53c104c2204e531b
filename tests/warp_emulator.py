"""Thirty-two Python threads in turn as one warp, and the instructions of kernels/lang_mma.py as their manual describes them.

With it the GPU forms of primitives (kernels/*_gpu.py), which neither the simulator nor a CPU can run, are checked from their own
source: which lane loads what, and where each product lands. Layouts: PTX ISA 8, section "Matrix fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.emulated_memory import Words, load16
from tests.storage_cases import widened
from tests.turns import Meeting, Turns

LANES = 32


class _CountedBarrier:
    """Of kernels/lang_bulk.py, in shared memory."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.arrived, self.announced, self.phase = arrivals, 0, 0, 0
        self.runs: list[tuple[int, np.ndarray]] = []
        self.waiting: list[Any] = []

    def is_full(self) -> bool:
        return self.arrived == self.arrivals and sum(len(run) for _, run in self.runs) == self.announced


class Warp:
    """One warp, or `warps` in each of `blocks` blocks of a cluster. Every thread must call each collective instruction the same
    number of times, as on the hardware."""

    def __init__(self, warps: int = 1, blocks: int = 1) -> None:
        self._turns = Turns()
        self._warps, self._blocks = warps, blocks
        self._teams = [self.meeting(LANES) for _ in range(warps * blocks)]
        self._block_barriers = [self.meeting(LANES * warps) for _ in range(blocks)]
        self._cluster_barrier = self.meeting(LANES * warps * blocks)
        self._memories: list[dict[int, np.ndarray]] = [{} for _ in range(blocks)]  # shared, by 16 bytes
        self._seen: list[dict[int, np.ndarray]] = [{} for _ in range(blocks)]  # of that, what warp groups see
        self._engines: list[dict[int, _CountedBarrier]] = [{} for _ in range(blocks)]
        self.products = 0
        self.copies = 0
        self.early: list[int] = []  # first elements that were loaded early

    @property
    def _memory(self) -> dict[int, np.ndarray]:
        return self._memories[self._local.block]

    @property
    def _engine(self) -> dict[int, _CountedBarrier]:
        return self._engines[self._local.block]

    @property
    def _team(self) -> Meeting:
        return self._teams[self._local.block * self._warps + self._local.warp]

    @property
    def _local(self) -> SimpleNamespace:
        return self._turns.local

    @property
    def local(self) -> SimpleNamespace:
        """What the running thread keeps for itself."""
        return self._turns.local

    def meeting(self, threads: int) -> Meeting:
        """A barrier of as many threads."""
        return Meeting(self._turns, threads)

    def lane(self) -> np.int32:
        return np.int32(self._local.lane)

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function` from every lane, and wait for them. Raises the first error of a lane."""

        def body(thread: int) -> None:
            warp, self._local.lane = divmod(thread, LANES)
            self._local.block, self._local.warp = divmod(warp, self._warps)
            self._local.pending, self._local.groups, self._local.unseen = [], [], {}
            with np.errstate(all="ignore"):  # infinity and NaN are nothing to warn of on a GPU
                function(*args)

        self._turns.run(body, LANES * self._warps * self._blocks)

    @property
    def threadIdx(self) -> SimpleNamespace:  # noqa: N802 - as cuda has it
        return SimpleNamespace(x=self._local.warp * LANES + self._local.lane)

    @property
    def blockDim(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(x=LANES * self._warps)

    @property
    def blockIdx(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(x=self._local.block, y=0, z=0)

    @property
    def gridDim(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(x=self._blocks, y=1, z=1)

    def syncthreads(self) -> None:
        self._block_barriers[self._local.block].wait()

    def cluster_rank(self) -> np.int32:
        return np.int32(self._local.block)

    def cluster_size(self) -> np.int32:
        return np.int32(self._blocks)

    def cluster_barrier(self) -> None:
        self._cluster_barrier.wait()

    def cluster_address(self, address: Any, rank: Any) -> np.uint32:
        return np.uint32(int(address) + (int(rank) << 24))

    def read_cluster(self, address: Any) -> np.float32:
        rank, byte = divmod(int(address), 1 << 24)
        value: np.float32 = self._memories[rank][byte // 16 * 16].view(np.float32)[byte % 16 // 4]
        return value

    def read_cluster_four(self, address: Any) -> tuple[np.float32, ...]:
        assert int(address) % 16 == 0
        return tuple(self.read_cluster(int(address) + 4 * i) for i in range(4))

    def copy16(self, address: Any, array: np.ndarray, offset: Any, size: Any) -> None:
        """Arrives at the wait, not before: a slot that is read too early holds what it held."""
        assert int(address) % 16 == 0
        assert int(size) in (0, 16)
        words = load16(array, offset) if size else (np.uint32(0),) * 4
        self._pending.append((int(address), words))
        self.copies += int(size) == 16

    def early16(self, array: np.ndarray, offset: Any, wanted: Any) -> Words:
        """NaN where nothing is wanted: whatever was in the registers."""
        if not int(wanted):
            return (np.uint32(0xFFFFFFFF),) * 4
        self.early.append(int(offset))
        return load16(array, int(offset))

    def commit_copies(self) -> None:
        self._groups.append(self._pending)
        self._local.pending = []

    def wait(self, newest: int) -> None:
        while len(self._groups) > newest:
            for address, words in self._groups.pop(0):
                self._memory[address] = self._local.unseen[address] = np.array(words, np.uint32).view(np.uint8)

    def show_copies(self) -> None:
        """Copies of this thread that have arrived are seen by warp groups from now on."""
        self._seen[self._local.block].update(self._local.unseen)
        self._local.unseen = {}

    def seen16(self, address: int) -> Words:
        """What warp groups read; NaN where nothing was shown."""
        assert address % 16 == 0
        return tuple(self._seen[self._local.block].get(address, np.full(16, 0xFF, np.uint8)).view(np.uint32))

    def barrier_begin(self, barrier: Any, arrivals: Any) -> None:
        assert int(barrier) % 8 == 0
        self._engine[int(barrier)] = _CountedBarrier(int(arrivals))

    def barrier_arrive(self, barrier: Any) -> None:
        self.barrier_expect(barrier, 0)

    def barrier_expect(self, barrier: Any, size: Any) -> None:
        held = self._engine[int(barrier)]
        held.arrived, held.announced = held.arrived + 1, held.announced + int(size)
        self._turns.wake(held.waiting)

    def copy_run(self, address: Any, array: np.ndarray, offset: Any, size: Any, barrier: Any, policy: Any) -> None:
        """Its place holds NaN from now on, and the run when the barrier's phase ends: the engine may write at any time between."""
        assert int(address) % 16 == 0
        assert int(size) > 0
        assert int(size) % 16 == 0
        assert array.flags.c_contiguous
        start = int(offset) * array.itemsize
        assert start % 16 == 0
        run = array.reshape(-1).view(np.uint8)[start : start + int(size)].copy()
        assert len(run) == int(size), "reads beyond the array"
        held = self._engine[int(barrier)]
        held.runs.append((int(address), run))
        for at in range(int(address), int(address) + len(run), 16):
            self._memory[at] = np.full(16, 0xFF, np.uint8)
        self._turns.wake(held.waiting)

    def barrier_wait(self, barrier: Any, parity: Any) -> None:
        held = self._engine[int(barrier)]
        while held.phase & 1 == int(parity):
            if held.is_full():
                for address, run in held.runs:
                    for i in range(0, len(run), 16):
                        self._memory[address + i] = run[i : i + 16]
                held.arrived, held.announced, held.phase = 0, 0, held.phase + 1
                held.runs.clear()
                self._turns.wake(held.waiting)
            else:
                self._turns.park_with(held.waiting)

    def runs_under_way(self) -> int:
        """Runs that were asked for and for which nobody waited."""
        return sum(len(held.runs) for engine in self._engines for held in engine.values())

    def read16(self, address: Any) -> Words:
        return tuple(self._memory.get(int(address), np.full(16, 0xFF, np.uint8)).view(np.uint32))  # NaN where nothing was stored

    def read4(self, address: Any) -> np.float32:
        value: np.float32 = np.array(self.read16(int(address) // 16 * 16), np.uint32).view(np.float32)[int(address) % 16 // 4]
        return value

    def read_matrices(self, address: Any, *, transposed: bool = False) -> Words:
        """A word of each of four matrices; NaN where nothing was stored. Refuses rows of a matrix that meet in a bank."""
        assert int(address) % 16 == 0

        def matrices(rows: list[Any]) -> list[np.ndarray]:
            places = [{int(row) // 16 % 8 for row in rows[8 * i : 8 * i + 8]} for i in range(4)]
            assert all(len(of_matrix) == 8 for of_matrix in places), "rows of a matrix meet in a bank"
            whole = np.array([self.read16(row) for row in rows], np.uint32).view(np.uint16).reshape(4, 8, 8)
            return list(np.ascontiguousarray(whole.swapaxes(1, 2) if transposed else whole).view(np.uint32))

        group, quad = divmod(self._local.lane, 4)
        return tuple(matrix[group, quad] for matrix in self._team.wait(address, matrices))

    def write2(self, address: Any, word: Any) -> None:
        slot, byte = divmod(int(address), 16)
        held = self._memory.setdefault(slot * 16, np.full(16, 0xFF, np.uint8))
        held[byte : byte + 2] = np.array([word], np.uint32).view(np.uint8)[:2]

    def write16(self, address: Any, *values: Any) -> None:
        assert int(address) % 16 == 0
        self._memory[int(address)] = np.array(values, np.float32).view(np.uint8)

    def write8(self, address: Any, *values: Any) -> None:
        slot, byte = divmod(int(address), 16)
        assert byte % 8 == 0
        held = self._memory.setdefault(slot * 16, np.full(16, 0xFF, np.uint8))
        held.view(np.float32)[byte // 4 : byte // 4 + 2] = values

    def write4(self, address: Any, value: Any) -> None:
        slot, byte = divmod(int(address), 16)
        self._memory.setdefault(slot * 16, np.full(16, 0xFF, np.uint8)).view(np.float32)[byte // 4] = value

    def barrier(self) -> None:
        self._team.wait()

    def syncwarp(self) -> None:
        self._team.wait()

    def broadcast(self, value: Any, source: Any) -> Any:
        """Refuses what Numba has no shuffle for: the common form would be compiled in its place, and yield each lane its own."""
        assert isinstance(value, (np.int32, np.float32)), type(value)
        return self.combine(value, lambda lane: [int(source)], lambda values: values[0])

    def take(self, value: Any, source: Any) -> Any:
        """What lane `source` offers, which each lane chooses for itself."""
        assert isinstance(value, (np.int32, np.float32)), type(value)
        return self.combine(value, lambda lane: [int(source)], lambda values: values[0])

    def combine(self, value: Any, lanes: Callable[[int], list[int]], operation: Callable[..., Any]) -> Any:
        """`operation` over what the lanes of lanes(own lane) offer."""
        offered = self._team.wait(value)
        return operation([offered[lane] for lane in lanes(self._local.lane)])

    @property
    def _pending(self) -> list[tuple[int, Words]]:
        pending: list[tuple[int, Words]] = self._local.pending
        return pending

    @property
    def _groups(self) -> list[list[tuple[int, Words]]]:
        groups: list[list[tuple[int, Words]]] = self._local.groups
        return groups

    def mma(self, dtype: str, sums: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any) -> tuple[np.float32, ...]:
        """D = A [16, 16] @ B [16, 8] + C, from the registers of all lanes."""
        group, quad = divmod(self._local.lane, 4)
        result = self._team.wait((a0, a1, a2, a3, b0, b1), lambda offered: self._product(dtype, offered))
        places = ((group, 2 * quad), (group, 2 * quad + 1), (group + 8, 2 * quad), (group + 8, 2 * quad + 1))
        return tuple(np.float32(total + result[place]) for total, place in zip(sums, places, strict=True))

    def _product(self, dtype: str, offered: list[tuple[Any, ...]]) -> np.ndarray:
        a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
        kind = np.uint16 if dtype == "bfloat16" else np.float16
        values = widened(np.array(offered, np.uint32).view(kind)).reshape(LANES, 6, 2)
        for lane, pairs in enumerate(values):
            group, quad = divmod(lane, 4)
            for index, pair in enumerate(pairs[:4]):
                column = 2 * quad + 8 * (index // 2)
                a[group + 8 * (index % 2), column : column + 2] = pair
            for index, pair in enumerate(pairs[4:]):
                row = 2 * quad + 8 * index
                b[row : row + 2, group] = pair
        self.products += 1
        return a @ b
