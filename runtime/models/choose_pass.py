"""A step to measure by: as many rows as are asked for, of the requests that such a step has, in the middle of their sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.arrays import ModelArrays, Scratch, SlotState, StepArrays, StepInputs
from graphs.ops import ForwardPass
from runtime.step_buffers import StepSizes

CONTEXT = 256
"""Tokens in the cache before the step, where there is room: a few hundred are what attention takes its usual time for."""


def requests_of(rows: int, sizes: StepSizes) -> int:
    """Requests of a step of so many rows: each brings its drafts and one more row, the last of them what is left."""
    return min(-(-rows // (1 + sizes.num_speculative_tokens)), sizes.max_num_seqs)


def measured_pass(
    device: Any, stream: Any, model: ModelArrays, scratch: Scratch, sizes: StepSizes, rows: int, borrowed: list[Any]
) -> ForwardPass:
    """All rows are live. What activations and cache hold is lost; arrays that the caller frees go to `borrowed`."""
    requests = requests_of(rows, sizes)
    starts = np.arange(requests + 1) * rows // requests
    blocks, block_size = model.layers[0].k_cache.shape[:2]
    own = max(blocks // requests, 1)  # of a request, in turn where there are too few
    longest = int(np.diff(starts).max())
    context = max(min(CONTEXT, sizes.max_model_len - longest, own * block_size - longest), 0)
    of_row = np.repeat(np.arange(requests), np.diff(starts))
    positions = np.minimum(context + np.arange(rows) - starts[of_row], sizes.max_model_len - 1)
    tables = np.arange(requests)[:, None] * own + np.arange(-(-(context + longest) // block_size)) % own
    tables %= blocks
    slot_mapping = tables[of_row, positions // block_size] * block_size + positions % block_size

    def integers(name: str, values: Any) -> Any:
        array = device.array(f"choose_ops.{name}.{rows}", np.shape(values), np.int32)
        device.upload(array, np.asarray(values, np.int32))
        borrowed.append(array)
        return array

    live, indices = integers("live", [rows, requests, rows]), integers("indices", np.arange(rows))
    begins, slots = integers("starts", starts), integers("slots", np.arange(requests))
    query_len = longest if rows == longest * requests else 0
    inputs = StepInputs(live, slots, begins, begins, slots, slots, query_len=query_len)
    known = {
        "inputs": inputs,
        "positions": integers("positions", positions),
        "slot_mapping": integers("slot_mapping", slot_mapping),
        "token_slot": integers("token_slot", of_row),
    }
    step = StepArrays(**(dict.fromkeys(StepArrays.__dataclass_fields__, indices) | known))
    state = SlotState(
        **(dict.fromkeys(SlotState.__dataclass_fields__, indices) | {"block_tables": integers("block_tables", tables)})
    )
    return ForwardPass(stream, model, scratch, state, step, rows)
