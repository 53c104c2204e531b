"""Thirty-two Python threads as one warp, and the instructions of kernels/lang_mma.py as their manual describes them.

With it the GPU forms of primitives (kernels/*_gpu.py), which neither the simulator nor a CPU can run, are checked from their own
source: which lane loads what, and where each product lands. Layouts: PTX ISA 8, section "Matrix fragments for mma.m16n8k16".
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import kernels
from kernels import lang
from tests.storage_cases import stored, widened

Words = tuple[np.uint32, ...]
LANES = 32


class _Team:
    """What the lanes of one warp share."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(LANES, timeout=60)
        self.offered: list[Any] = [None] * LANES
        self.result = np.zeros((16, 8), np.float32)


class _CountedBarrier:
    """Of kernels/lang_bulk.py, in shared memory."""

    def __init__(self, arrivals: int) -> None:
        self.changed = threading.Condition()
        self.arrivals, self.arrived, self.announced, self.phase = arrivals, 0, 0, 0
        self.runs: list[tuple[int, np.ndarray]] = []

    def is_full(self) -> bool:
        return self.arrived == self.arrivals and sum(len(run) for _, run in self.runs) == self.announced


class Warp:
    """One warp, or `warps` in each of `blocks` blocks of a cluster. Every thread must call each collective instruction the same
    number of times, as on the hardware."""

    def __init__(self, warps: int = 1, blocks: int = 1) -> None:
        self._local = threading.local()
        self._teams = [_Team() for _ in range(warps * blocks)]
        self._warps, self._blocks = warps, blocks
        self._block_barriers = [threading.Barrier(LANES * warps, timeout=60) for _ in range(blocks)]
        self._cluster_barrier = threading.Barrier(LANES * warps * blocks, timeout=60)
        self._memories: list[dict[int, np.ndarray]] = [{} for _ in range(blocks)]  # shared, by 16 bytes
        self._engines: list[dict[int, _CountedBarrier]] = [{} for _ in range(blocks)]
        self.products = 0
        self.copies = 0

    @property
    def _memory(self) -> dict[int, np.ndarray]:
        return self._memories[self._local.block]

    @property
    def _engine(self) -> dict[int, _CountedBarrier]:
        return self._engines[self._local.block]

    @property
    def _team(self) -> _Team:
        return self._teams[self._local.block * self._warps + self._local.warp]

    def lane(self) -> np.int32:
        return np.int32(self._local.lane)

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function` from every lane, and wait for them. Raises the first error of a lane."""
        errors: list[BaseException] = []

        def body(thread: int) -> None:
            warp, self._local.lane = divmod(thread, LANES)
            self._local.block, self._local.warp = divmod(warp, self._warps)
            self._local.pending, self._local.groups = [], []
            try:
                function(*args)
            except BaseException as error:
                errors.append(error)
                for barrier in (*(team.barrier for team in self._teams), *self._block_barriers, self._cluster_barrier):
                    barrier.abort()

        threads = [threading.Thread(target=body, args=(thread,)) for thread in range(LANES * self._warps * self._blocks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

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

    def commit_copies(self) -> None:
        self._groups.append(self._pending)
        self._local.pending = []

    def wait(self, newest: int) -> None:
        while len(self._groups) > newest:
            for address, words in self._groups.pop(0):
                self._memory[address] = np.array(words, np.uint32).view(np.uint8)

    def barrier_begin(self, barrier: Any, arrivals: Any) -> None:
        assert int(barrier) % 8 == 0
        self._engine[int(barrier)] = _CountedBarrier(int(arrivals))

    def barrier_arrive(self, barrier: Any) -> None:
        self.barrier_expect(barrier, 0)

    def barrier_expect(self, barrier: Any, size: Any) -> None:
        held = self._engine[int(barrier)]
        with held.changed:
            held.arrived, held.announced = held.arrived + 1, held.announced + int(size)
            held.changed.notify_all()

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
        with held.changed:
            held.runs.append((int(address), run))
            for at in range(int(address), int(address) + len(run), 16):
                self._memory[at] = np.full(16, 0xFF, np.uint8)
            held.changed.notify_all()

    def barrier_wait(self, barrier: Any, parity: Any) -> None:
        held = self._engine[int(barrier)]
        with held.changed:
            assert held.changed.wait_for(lambda: held.phase & 1 != int(parity) or held.is_full(), timeout=60)
            if held.phase & 1 != int(parity):
                return
            for address, run in held.runs:
                for i in range(0, len(run), 16):
                    self._memory[address + i] = run[i : i + 16]
            held.arrived, held.announced, held.phase = 0, 0, held.phase + 1
            held.runs.clear()
            held.changed.notify_all()

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
        rows = self.combine(address, lambda lane: list(range(LANES)), lambda addresses: addresses)
        places = [{int(row) // 16 % 8 for row in rows[8 * i : 8 * i + 8]} for i in range(4)]
        assert all(len(of_matrix) == 8 for of_matrix in places), "rows of a matrix meet in a bank"
        group, quad = divmod(self._local.lane, 4)
        words = []
        for i in range(4):
            matrix = np.array([self.read16(row) for row in rows[8 * i : 8 * i + 8]], np.uint32).view(np.uint16)
            words.append((matrix.T if transposed else matrix)[group, 2 * quad : 2 * quad + 2].copy().view(np.uint32)[0])
        return tuple(words)

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
        self._team.barrier.wait()

    def syncwarp(self) -> None:
        self._team.barrier.wait()

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
        team = self._team
        team.offered[self._local.lane] = value
        team.barrier.wait()
        result = operation([team.offered[lane] for lane in lanes(self._local.lane)])
        team.barrier.wait()
        return result

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
        lane = self._local.lane
        team = self._team
        team.offered[lane] = (a0, a1, a2, a3, b0, b1)
        if team.barrier.wait() == 0:
            a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
            for other, registers in enumerate(team.offered):
                group, quad = divmod(other, 4)
                kind = np.uint16 if dtype == "bfloat16" else np.float16
                values = [widened(np.array([word], np.uint32).view(kind)) for word in registers]
                for index, pair in enumerate(values[:4]):
                    column = 2 * quad + 8 * (index // 2)
                    a[group + 8 * (index % 2), column : column + 2] = pair
                for index, pair in enumerate(values[4:]):
                    row = 2 * quad + 8 * index
                    b[row : row + 2, group] = pair
            team.result = a @ b
            self.products += 1
        team.barrier.wait()
        group, quad = divmod(lane, 4)
        places = ((group, 2 * quad), (group, 2 * quad + 1), (group + 8, 2 * quad), (group + 8, 2 * quad + 1))
        return tuple(np.float32(total + team.result[place]) for total, place in zip(sums, places, strict=True))


def load16(array: np.ndarray, offset: int) -> Words:
    """Refuses what the hardware would fault on: an address that is no multiple of 16, and one beyond the array."""
    start = int(offset) * array.itemsize
    assert start % 16 == 0, f"element {offset} of {array.dtype} is not aligned"
    assert 0 <= start <= array.nbytes - 16, f"element {offset} is outside {array.shape}"
    return tuple(array.reshape(-1).view(np.uint8)[start : start + 16].view(np.uint32))


def put16(array: np.ndarray, offset: int, words: Words) -> None:
    """Refuses what `load16` refuses."""
    load16(array, offset)
    array.reshape(-1)[int(offset) :].view(np.uint8)[:16] = np.array(words, np.uint32).view(np.uint8)


def load4(array: np.ndarray, offset: int) -> np.uint32:
    """Refuses odd elements, and those beyond the array."""
    assert array.itemsize == 2
    assert int(offset) % 2 == 0, f"element {offset} is not aligned"
    assert 0 <= int(offset) <= array.size - 2, f"element {offset} is outside {array.shape}"
    word: np.uint32 = array.reshape(-1)[int(offset) : int(offset) + 2].view(np.uint32)[0]
    return word


def put4(array: np.ndarray, offset: int, word: Any) -> None:
    """Refuses what `load4` refuses."""
    load4(array, offset)
    array.reshape(-1)[int(offset) : int(offset) + 2].view(np.uint32)[0] = word


def _eight(array: np.ndarray, offset: int) -> tuple[np.float32, ...]:
    """`eight_float32` of kernels/lang_vector.py."""
    load16(array, offset)
    return tuple(widened(array.reshape(-1)[int(offset) : int(offset) + 8]))


def _pair(dtype: str) -> Callable[[Any, Any], np.uint32]:
    def pair(low: Any, high: Any) -> np.uint32:
        word: np.uint32 = stored(np.array([low, high], np.float32), dtype).view(np.uint32)[0]
        return word

    return pair


def select_bytes(low: Any, high: Any, selector: Any) -> np.uint32:
    taken = np.array([low, high], np.uint32).view(np.uint8)
    word: np.uint32 = np.array([taken[int(selector) >> (4 * i) & 7] for i in range(4)], np.uint8).view(np.uint32)[0]
    return word


def gpu_module(name: str, warp: Warp, **others: ModuleType) -> ModuleType:
    """kernels/<name>.py, read anew with `warp` for its hardware. `others`: modules of kernels/ to hand it, by name."""
    mma = ModuleType("kernels.lang_mma")
    for dtype in ("bfloat16", "float16"):
        setattr(mma, f"mma_{dtype}", lambda *registers, dtype=dtype: warp.mma(dtype, *registers))
        setattr(mma, f"pair_{dtype}", _pair(dtype))
    mma.__dict__.update(
        load16=load16,
        copy16=warp.copy16,
        copy16_ahead=warp.copy16,
        commit_copies=warp.commit_copies,
        wait_copies=lambda: warp.wait(0),
        wait_older_copies=lambda: warp.wait(3),
        wait_second_copies=lambda: warp.wait(2),
        wait_first_copies=lambda: warp.wait(1),
        read16=warp.read16,
        ring_address=lambda ring: np.uint32(int(ring[0]) << 16),
    )
    mma.floats_of = lambda words: tuple(np.array(words, np.uint32).view(np.float32))  # type: ignore[attr-defined]
    mma.select_bytes = select_bytes  # type: ignore[attr-defined]
    language = ModuleType("kernels.lang")
    language.__dict__.update({key: getattr(lang, key) for key in ("f32", "i32", "i64", "u32", "u64", "NEG_INF")})
    unchanged = lambda function: function  # noqa: E731
    language.__dict__.update(cuda=warp, device_function=unchanged, kernel=lambda **options: unchanged)
    language.SIMULATED = True  # type: ignore[attr-defined]
    language.float_of_bits = lambda bits: np.int32(bits).view(np.float32)  # type: ignore[attr-defined]
    warps = ModuleType("kernels.lang_warp")
    quad = lambda lane: list(range(lane // 4 * 4, lane // 4 * 4 + 4))  # noqa: E731
    octet = lambda lane: list(range(lane // 8 * 8, lane // 8 * 8 + 8))  # noqa: E731
    everyone = lambda lane: list(range(LANES))  # noqa: E731
    warps.__dict__.update(
        lane=warp.lane,
        warp_barrier=warp.barrier,
        warp_size=lambda: np.int32(LANES),
        warp_sum=lambda value: warp.combine(value, everyone, lambda values: np.float32(np.sum(values))),
        quad_sum=lambda value: warp.combine(value, quad, lambda values: np.float32(np.sum(values))),
        quad_max=lambda value: warp.combine(value, quad, max),
        octet_sum=lambda value: warp.combine(value, octet, lambda values: np.float32(np.sum(values))),
        warp_max=lambda value: warp.combine(value, everyone, max),
        warp_broadcast=warp.broadcast,
        warp_take=warp.take,
    )
    elements = ModuleType("kernels.lang_element")
    elements.__dict__.update(
        element=lambda array, offset: array.reshape(-1)[int(offset)],
        early_int=lambda array, offset: array.reshape(-1)[int(offset)],
        put_element=lambda array, offset, value: array.reshape(-1).__setitem__(int(offset), value),
        put16=put16,
        words_of=lambda floats: tuple(np.array(floats, np.float32).view(np.uint32)),
        put_bits=lambda array, offset, word: array.reshape(-1).view(np.uint16).__setitem__(int(offset), word & 0xFFFF),
        write2=warp.write2,
        write4=warp.write4,
        write8=warp.write8,
        write16=warp.write16,
        exp2=np.exp2,
        inverse=lambda value: np.float32(1) / np.float32(value),
    )
    matrices = ModuleType("kernels.lang_matrix")
    matrices.__dict__.update(
        read_matrices=warp.read_matrices,
        read_transposed=lambda address: warp.read_matrices(address, transposed=True),
        load4=load4,
        put4=put4,
        read4=warp.read4,
        larger=np.fmax,
    )
    fast = ModuleType("kernels.lang_fast")
    fast.inverse_root = lambda value: np.float32(1) / np.sqrt(np.float32(value))  # type: ignore[attr-defined]
    overlap = ModuleType("kernels.lang_overlap")
    overlap.__dict__.update(
        wait_for_launches=lambda: None,
        let_next_launch_start=lambda: None,
        cluster_rank=warp.cluster_rank,
        cluster_size=warp.cluster_size,
        cluster_number=lambda: np.int32(0),
        cluster_numbers=lambda: np.int32(1),
        cluster_barrier=warp.cluster_barrier,
        cluster_address=warp.cluster_address,
        read_cluster=warp.read_cluster,
        read_cluster_four=warp.read_cluster_four,
    )
    bulk = ModuleType("kernels.lang_bulk")
    bulk.__dict__.update(
        barrier_arrive=warp.barrier_arrive,
        barrier_begin=warp.barrier_begin,
        barriers_begun=lambda: None,
        barrier_expect=warp.barrier_expect,
        barrier_wait=warp.barrier_wait,
        copy_run=warp.copy_run,
        evict_first=lambda: np.uint64(0),
    )
    vectors = ModuleType("kernels.lang_vector")
    vectors.EIGHT = dict.fromkeys(("float32", "uint16", "float16"), _eight)  # type: ignore[attr-defined]
    stand_ins = {"kernels.lang_mma": mma, "kernels.lang": language, "kernels.lang_warp": warps, "kernels.lang_vector": vectors}
    stand_ins["kernels.lang_bulk"] = bulk
    stand_ins |= {"kernels.lang_element": elements, "kernels.lang_fast": fast, "kernels.lang_overlap": overlap}
    stand_ins["kernels.lang_matrix"] = matrices
    stand_ins |= {f"kernels.{key}": module for key, module in others.items()}
    spec = importlib.util.spec_from_file_location(f"emulated.{name}", Path(kernels.__path__[0]) / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module
