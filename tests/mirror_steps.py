"""A small engine over the device mirrors, used by their tests: staged inputs, two graphs a step, outcomes collected one step late.

Per slot: total += amount of the step's row for the slot; table cells come from staged diffs; the outcome of a row is
(total, table[slot, 0]). `expected` is the same in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphs.cpu_executor import CpuExecutor
from graphs.launch import Launcher
from kernels.lang import cuda, i32, kernel
from kernels.slots import staged_write
from runtime.mirror_policy import MirrorPolicy
from runtime.mirror_table import MirrorTable
from runtime.truth import Truth
from runtime.virtual_device import VirtualDevice

SLOTS, COLUMNS, WRITES = 4, 3, 4
EXECUTOR = CpuExecutor()
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(8))]
POLICIES = ["discrete", "integrated"]


@kernel(writes=("total", "results"))
def accumulate(total, results, table, idx_mapping, amounts, num_rows):
    """total[slot] += amounts[row]; results [1, N, 2] by row: (total, table[slot, 0])."""
    for row in range(cuda.grid(1), num_rows[0], cuda.gridsize(1)):
        slot = idx_mapping[row]
        total[slot] += amounts[row]
        results[0, row, 0] = total[slot]
        results[0, row, 1] = table[slot, 0]


@kernel(writes=("drafts",))
def propose(drafts, total, idx_mapping, num_rows):
    """drafts[slot] = total[slot] + 1: device state that the host never sees."""
    for row in range(cuda.grid(1), num_rows[0], cuda.gridsize(1)):
        drafts[idx_mapping[row]] = total[idx_mapping[row]] + i32(1)


@dataclass(frozen=True)
class Graph:
    """A captured graph with the key that the table knows it by."""

    key: str
    reads: frozenset[str]
    writes: frozenset[str]
    executable: Any


def policy_of(name: str) -> MirrorPolicy:
    return MirrorPolicy(name, "test")


def open_virtual(schedule: str = "lazy", seed: int = 0, **options: Any) -> VirtualDevice:
    return VirtualDevice(EXECUTOR, schedule=schedule, seed=seed, poison=True, **options)  # type: ignore[arg-type]


class Steps:
    """The engine. `run(n)` yields the outcome of each step as it is collected."""

    def __init__(
        self, device: VirtualDevice, policy: str, *, steps_in_flight: int = 2, ahead: int = 1, poison: bool = True
    ) -> None:
        self.device, self.ahead = device, ahead
        self.compute, self.copy = device.stream("compute"), device.stream("copy")
        table = self.table = MirrorTable(device, policy_of(policy), self.compute, steps_in_flight=steps_in_flight, poison=poison)
        self.pack = table.pack(
            "inputs",
            {"live": (1,), "idx_mapping": (SLOTS,), "amounts": (SLOTS,), "num_block_writes": (1,), "block_writes": (WRITES, 3)},
        )
        table.create("total", (SLOTS,), Truth.DEVICE_EXACT)
        table.create("draft_tokens", (SLOTS,), Truth.DEVICE_EXACT)
        table.create("block_tables", (SLOTS, COLUMNS), Truth.HOST_EXACT, diffs=True)
        self.outcomes = table.outcomes("outcomes", (SLOTS, 2))
        self.verify = self._capture("verify[R=4]", self._record_verify)
        self.propose = self._capture("propose[R=4]", self._record_propose)
        self.untracked = table.adopt(self.verify) | table.adopt(self.propose)
        with table.eager("start", writes=["total", "draft_tokens"]):
            self.compute.fill(table["total"].device_array, 0)
            self.compute.fill(table["draft_tokens"].device_array, -1)
        table["block_tables"].upload(self.compute)

    def _record_verify(self, launch: Launcher) -> None:
        table, pack = self.table, self.pack
        device = {name: field.device_array for name, field in pack.fields.items()}
        launch.launch(
            staged_write, 1, 32, table["block_tables"].device_array, device["block_writes"], device["num_block_writes"]
        )
        launch.launch(
            accumulate,
            1,
            32,
            table["total"].device_array,
            self.outcomes.array,
            table["block_tables"].device_array,
            device["idx_mapping"],
            device["amounts"],
            device["live"],
        )

    def _record_propose(self, launch: Launcher) -> None:
        table, pack = self.table, self.pack
        drafts, total = table["draft_tokens"].device_array, table["total"].device_array
        launch.launch(propose, 1, 32, drafts, total, pack["idx_mapping"].device_array, pack["live"].device_array)

    def _capture(self, key: str, record: Any) -> Graph:
        with self.compute.capture(key) as captured:
            record(self.compute)
        return Graph(key, captured.graph.reads, captured.graph.writes, captured.graph)

    def launch(self, graph: Graph) -> None:
        self.table.before_launch(graph)
        graph.executable.launch(self.compute)
        self.table.after_launch(graph)

    def stage(self, step: int) -> None:
        """Write the fields of a step and queue their one copy."""
        slots, amounts = rows_of(step)
        pack, tables = self.pack, self.table["block_tables"]
        for row, column, value in writes_of(step):
            tables.write_host(value, (row, column))
        diffs = tables.take_diffs(WRITES)
        pack["live"].write_host(len(slots))
        pack["idx_mapping"].write_host(slots, slice(len(slots)))
        pack["idx_mapping"].write_host(-1, slice(len(slots), SLOTS))
        pack["amounts"].write_host(amounts, slice(len(slots)))
        pack["num_block_writes"].write_host(len(diffs))
        pack["block_writes"].write_host(diffs, slice(len(diffs)))
        pack.upload(step, self.compute, len(diffs))

    def run(self, num_steps: int) -> Iterator[npt.NDArray[Any]]:
        """`ahead` steps are queued before the oldest is collected: 1 in a steady asynchronous engine."""
        for step in range(num_steps):
            self.stage(step)
            self.launch(self.verify)
            self.outcomes.submit(step, self.compute, self.copy)
            self.launch(self.propose)
            if step >= self.ahead:
                yield self.outcomes.collect(step - self.ahead)
        for step in range(max(0, num_steps - self.ahead), num_steps):
            yield self.outcomes.collect(step)


def rows_of(step: int) -> tuple[list[int], list[int]]:
    """Slots and amounts of the rows of a step: ragged, in another order every time."""
    slots = [(step + row) % SLOTS for row in range(1 + step % SLOTS)]
    return slots, [10 * step + slot + 1 for slot in slots]


def writes_of(step: int) -> list[tuple[int, int, int]]:
    """Table cells written before a step; two writes of one cell now and then, where the later one counts."""
    cell = (step % SLOTS, 0)
    return [(*cell, 100 + step)] + ([(*cell, 200 + step)] if step % 3 == 0 else [])


def expected(num_steps: int) -> list[list[tuple[int, int]]]:
    total, table = [0] * SLOTS, [[0] * COLUMNS for _ in range(SLOTS)]
    outcomes = []
    for step in range(num_steps):
        for row, column, value in writes_of(step):
            table[row][column] = value
        slots, amounts = rows_of(step)
        for slot, amount in zip(slots, amounts, strict=True):
            total[slot] += amount
        outcomes.append([(total[slot], table[slot][0]) for slot in slots])
    return outcomes


def rows_of_outcomes(outcomes: Sequence[npt.NDArray[np.int32]]) -> list[list[tuple[int, int]]]:
    """Live rows only: pads mean nothing."""
    return [[(int(a), int(b)) for a, b in outcome[: len(rows_of(step)[0])]] for step, outcome in enumerate(outcomes)]
