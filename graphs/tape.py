"""Recording with tapes: the launches of a step, and between them those that note which ids it drafted, fed and compared.

The ids are taken from the arguments of the very launches that use them, so that a recorder that hands the wrong array to the
forward or to the accept walk shows on the tape as well as a wrong value in the right one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Grid, Launcher
from kernels.accept import accept_greedy
from kernels.lang import Kernel
from kernels.tape import tape_drafts, tape_rows

TAPE_THREADS = 32


@dataclass(frozen=True)
class Tape:
    """records int32 [C, N, 3 + W] (kernels/tape.py), cursor int32 [1]: records appended so far."""

    records: Array
    cursor: Array


@dataclass(frozen=True)
class Tapes:
    """One record for each step on each of them.

    drafted: by the propose graph. fed: what the first launch of the forward reads. compared: what the accept walk reads.
    """

    drafted: Tape
    fed: Tape
    compared: Tape

    def record_drafts(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        """To be recorded at the end of a propose graph."""
        tape, rows = self.drafted, step.inputs.idx_mapping[: key.num_requests]
        arrays = (tape.records, tape.cursor, state.draft_tokens, state.total_len, rows, step.inputs.num_requests)
        launch.launch(tape_drafts, 1, TAPE_THREADS, *arrays)


class TapedLauncher:
    """A Launcher that passes everything on, and notes ids in front of the launches that read them."""

    def __init__(self, launch: Launcher, tapes: Tapes, key: GraphKey, step: StepArrays) -> None:
        self._launch, self._tapes, self._key, self._step = launch, tapes, key, step
        self._fed = False

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        arguments = dict(zip(kernel.params, args, strict=True))
        if kernel is accept_greedy:
            self._note(self._tapes.compared, arguments)
        elif "input_ids" in arguments and "input_ids" not in kernel.writes and not self._fed:
            self._fed = True
            self._note(self._tapes.fed, arguments)
        self._launch.launch(kernel, grid, block, *args)

    def _note(self, tape: Tape, arguments: dict[str, Any]) -> None:
        step, rows = self._step, self._key.num_requests
        self._launch.launch(
            tape_rows,
            1,
            TAPE_THREADS,
            tape.records,
            tape.cursor,
            arguments["input_ids"],
            step.logits_indices,
            step.positions,
            arguments.get("cu_num_logits", step.inputs.cu_num_logits[: rows + 1]),
            step.inputs.idx_mapping[:rows],
            step.inputs.num_requests,
        )

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        self._launch.matmul(out, x, weight, rows)

    def copy(self, dst: Array, src: Array) -> None:
        self._launch.copy(dst, src)

    def fill(self, dst: Array, value: int | float) -> None:
        self._launch.fill(dst, value)

    def record(self, event: Any) -> None:
        self._launch.record(event)

    def wait(self, event: Any) -> None:
        self._launch.wait(event)

    def fork(self) -> Launcher:
        return self._launch.fork()

    def join(self, beside: Launcher) -> None:
        self._launch.join(beside)
