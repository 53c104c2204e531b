"""StepStaging: a plan as the inputs that its graphs read, and their way to the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kernels.combine import check_arguments
from runtime.device import Stream
from runtime.mirror_table import MirrorTable
from runtime.plan import StepPlan
from runtime.step_buffers import StepBuffers

Rows: TypeAlias = "list[tuple[int, int, int]]"
"""Slot, tokens and drafts of each row."""


class StepStaging:
    """Writes step inputs and queues their copy on the compute stream.

    The inputs say which slots run, and how many tokens of each: in a steady decode they are those of the step before, and so is
    what the device has. Such a step moves nothing. The tags of the mirrored buffers are the reason that this is safe: only the host
    writes these buffers, and a host copy that is newer than the device's is refused at the launch.
    """

    def __init__(self, table: MirrorTable, buffers: StepBuffers, compute: Stream) -> None:
        self._table, self._buffers, self._compute = table, buffers, compute
        self._inputs = buffers.inputs
        slots, stride = buffers.state.draft_tokens.shape
        self._num_slots, self._draft_shape = buffers.sizes.max_num_seqs, (slots, stride)
        self._rows: Rows | None = None  # that the device has
        self._num_writes = self._uploads = 0

    def stage(self, plan: StepPlan) -> None:
        """Write the step's inputs over their whole length, pads included, and queue their one copy.

        Raises:
            ValueError: the plan asks for what the combine kernel cannot refuse by itself.
        """
        rows = [(row.slot, row.num_tokens, row.num_drafts) for row in plan.rows]
        new_rows = rows != self._rows
        if new_rows:
            # A plan that is refused halfway leaves inputs that belong to no step.
            self._rows = None
            starts = _starts_of(rows)
            self._check(rows, *starts)
        writes = self._block_table_diffs(plan)
        num_writes = len(writes)
        if not new_rows and not num_writes and not self._num_writes:
            return
        if new_rows:
            self._write_rows(rows, *starts)
        self._inputs["num_block_writes"].write_host(np.array([num_writes], np.int32))
        if num_writes:
            self._inputs["block_writes"].write_host(writes, slice(0, num_writes))
        # A step changes few cells of the block tables; room for all of them is most of the block.
        self._inputs.upload(self._uploads, self._compute, num_writes)
        self._rows, self._num_writes = rows, num_writes
        self._uploads += 1

    def _check(self, rows: Rows, query_starts: list[int], logits_starts: list[int]) -> None:
        """Whatever the kernel has no lengths to refuse is refused here, in every arm."""
        check_arguments(
            cu_num_logits=logits_starts,
            query_start_loc=query_starts,
            idx_mapping=[slot for slot, _, _ in rows],
            draft_shape=self._draft_shape,
            num_slots=self._num_slots,
            bonus=1,
        )

    def _write_rows(self, rows: Rows, query_starts: list[int], logits_starts: list[int]) -> None:
        inputs, slots = self._inputs, self._num_slots
        idx_mapping = np.full(slots, -1, np.int32)
        idx_mapping[: len(rows)] = [slot for slot, _, _ in rows]
        inputs["live"].write_host(np.array([query_starts[-1], len(rows), logits_starts[-1]], np.int32))
        inputs["idx_mapping"].write_host(idx_mapping)
        inputs["query_start_loc"].write_host(_padded(query_starts, slots + 1))
        inputs["cu_num_logits"].write_host(_padded(logits_starts, slots + 1))

    def _block_table_diffs(self, plan: StepPlan) -> npt.NDArray[np.int32]:
        """int32 [n, 3] (slot, column, block): what changes in the block tables, each cell once.

        A slot that changes hands is emptied first: a row that ran past its new owner's blocks then writes nowhere, instead of into
        a block that belongs to another request by now.
        """
        block_tables = self._table["block_tables"]
        cells: dict[tuple[int, int], int] = {}
        for admission in plan.admissions:
            for column in np.flatnonzero(block_tables.read_host()[admission.slot] >= 0).tolist():
                cells[admission.slot, column] = -1
        for write in plan.block_writes:
            cells[write.slot, write.column] = write.block
        block_tables.write_cells([(slot, column, block) for (slot, column), block in cells.items()])
        # Also when there are none: the graph applies what was staged, and is refused where nothing was.
        return block_tables.take_diffs(self._buffers.sizes.block_writes)


def _starts_of(rows: Rows) -> tuple[list[int], list[int]]:
    """Prefix sums over the rows: of their tokens, and of their logits rows."""
    query_starts = list(accumulate((num_tokens for _, num_tokens, _ in rows), initial=0))
    logits_starts = list(accumulate((1 + num_drafts for _, _, num_drafts in rows), initial=0))
    return query_starts, logits_starts


def _padded(starts: Sequence[int], length: int) -> npt.NDArray[np.int32]:
    """int32 [length]: prefix sums; behind the last row their total, so that a pad row is empty."""
    padded = np.full(length, starts[-1], np.int32)
    padded[: len(starts)] = starts
    return padded
