"""Every array of a step, created by name in the mirror table: the sizes are those of the largest step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.arrays import SlotState, StepArrays, StepInputs
from graphs.launch import Array
from graphs.sampling_state import SamplingState
from kernels.publish import OUTCOME_FIELDS
from kernels.sampling_slots import SAMPLING_RECORD
from kernels.slots import RECORD_FIELDS
from runtime.device import Stream
from runtime.mirror_pack import MirrorPack
from runtime.mirror_table import MirrorTable
from runtime.staging import OutcomeRing
from runtime.truth import Truth


@dataclass(frozen=True)
class StepSizes:
    """Largest sizes that a step can have; counts of elements."""

    max_num_seqs: int  # N
    num_speculative_tokens: int  # k
    max_model_len: int  # L
    max_num_batched_tokens: int  # T
    block_size: int
    num_stop_ids: int  # S

    @property
    def num_logits(self) -> int:
        """J: every row verifies k drafts and its bonus."""
        return self.max_num_seqs * (1 + self.num_speculative_tokens)

    @property
    def blocks_per_slot(self) -> int:
        """B"""
        return -(-self.max_model_len // self.block_size)

    @property
    def block_writes(self) -> int:
        """Block-table cells that one step may change: a whole new table for every slot."""
        return self.max_num_seqs * self.blocks_per_slot


class StepBuffers:
    """Owner of the names. `state`, `step` and `inputs` are what recorders borrow.

    Args:
        table: where everything is created.
        sizes: of the largest step.
    """

    # Written by the host through the admission record; by the device from then on, or by nobody.
    ADMITTED_HOST = ("prefill_len", "max_total_len", "min_total_len", "stop_ids")
    ADMITTED_DEVICE = ("num_computed", "total_len", "last_sampled", "draft_tokens", "num_draft", "finished", "history")

    # Written by the admission kernel alone: the host has them in the request's SamplingParams.
    ADMITTED_SAMPLING = tuple(SamplingState.__dataclass_fields__)

    def __init__(self, table: MirrorTable, sizes: StepSizes) -> None:
        self.table = table
        self.sizes = sizes
        slots, k = sizes.max_num_seqs, sizes.num_speculative_tokens
        self.inputs: MirrorPack = table.pack(
            "step_inputs",
            {
                "live": (3,),
                "idx_mapping": (slots,),
                "query_start_loc": (slots + 1,),
                "cu_num_logits": (slots + 1,),
                "num_block_writes": (1,),
                "block_writes": (sizes.block_writes, 3),
            },
        )
        # A proposer needs somewhere to write, and k = 0 has none: one column that nobody reads keeps the shapes alike.
        shapes = {
            "draft_tokens": (slots, max(k, 1)),
            "history": (slots, sizes.max_model_len),
            "stop_ids": (slots, sizes.num_stop_ids),
        }
        for name in self.ADMITTED_DEVICE:
            table.create(name, shapes.get(name, (slots,)), Truth.DEVICE_EXACT)
        for name in self.ADMITTED_HOST:
            table.create(name, shapes.get(name, (slots,)), Truth.HOST_EXACT, apart=True)
        for name, shape, dtype in (
            ("temperature", (slots,), np.float32),
            ("seed", (slots, 2), np.int32),
            ("top_k", (slots,), np.int32),
            ("top_p", (slots,), np.float32),
            ("min_p", (slots,), np.float32),
            ("repetition", (slots,), np.float32),
            ("presence", (slots,), np.float32),
            ("frequency", (slots,), np.float32),
            ("num_logprobs", (slots,), np.int32),
            ("num_bias", (slots,), np.int32),
            ("num_bad", (slots,), np.int32),
            ("restricted", (slots,), np.int32),
        ):
            table.create(name, shape, Truth.DEVICE_EXACT, dtype)
        table.create("block_tables", (slots, sizes.blocks_per_slot), Truth.HOST_EXACT, diffs=True)
        tokens = sizes.max_num_batched_tokens
        for name, shape in (
            ("input_token_ids", (tokens,)),
            ("positions", (tokens,)),
            ("token_slot", (tokens,)),
            ("slot_mapping", (tokens,)),
            ("seq_lens", (slots,)),
            ("next_prefill", (slots,)),
            ("logits_indices", (sizes.num_logits,)),
            ("sampled", (slots, 1 + k)),
            ("num_sampled", (slots,)),
            ("num_rejected", (slots,)),
            ("num_drafts", (slots,)),
        ):
            table.create(name, shape, Truth.DEVICE_EXACT)
        table.poison_when_overtaken("input_token_ids")
        self.outcomes: OutcomeRing = table.outcomes("outcome", (slots, OUTCOME_FIELDS + 1 + k))
        # Every slot may be admitted in every step in flight, and once more in the step that is being prepared.
        self.admission: MirrorPack = table.pack(
            "admission",
            {
                "record": (RECORD_FIELDS + sizes.num_stop_ids,),
                "sampling_record": (SAMPLING_RECORD,),
                "tokens": (sizes.max_model_len,),
            },
            depth=slots * (table.steps_in_flight + 1),
        )

    @property
    def state(self) -> SlotState:
        def arrays(names: Iterable[str]) -> dict[str, Array]:
            return {name: self.table[name].device_array for name in names}

        fields = [name for name in SlotState.__dataclass_fields__ if name != "sampling"]
        return SlotState(**arrays(fields), sampling=SamplingState(**arrays(self.ADMITTED_SAMPLING)))

    @property
    def step(self) -> StepArrays:
        fields: dict[str, Any] = {name: field.device_array for name, field in self.inputs.fields.items()}
        names = set(StepArrays.__dataclass_fields__) - {"inputs", "outcome"}
        arrays = {name: self.table[name].device_array for name in names}
        return StepArrays(inputs=StepInputs(**fields), outcome=self.outcomes.array, **arrays)

    def initialise(self, stream: Stream) -> None:
        """Give every buffer a defined value that nothing may use: a slot that nobody was admitted to reads as empty."""
        with self.table.eager("initialise", writes=(*self.ADMITTED_DEVICE, *self.ADMITTED_SAMPLING)):
            for name in (*self.ADMITTED_DEVICE, *self.ADMITTED_SAMPLING):
                stream.fill(self.table[name].device_array, -1 if name in ("draft_tokens", "history") else 0)
        for name in (*self.ADMITTED_HOST, "block_tables"):
            buffer = self.table[name]
            buffer.write_host(-1 if name in ("stop_ids", "block_tables") else 0)
            buffer.upload(stream)
        # Pads and rows of earlier steps live in these; a graph that writes only its live rows reads no undefined memory.
        computed = sorted(set(StepArrays.__dataclass_fields__) - {"inputs", "outcome"})
        with self.table.eager("initialise", writes=computed):
            for name in computed:
                stream.fill(self.table[name].device_array, -1)
            stream.fill(self.outcomes.array, -1)
