"""Ops of the JSON form that are kernels: each builds the arrays that its vector implies and launches the real kernel.

An op takes (launch, inputs) and returns named outputs. `launch(kernel, *args)` runs one kernel on arrays in place. Outputs start
from zeros where a peer's suite starts from zeros, and from POISON where nothing may be left unwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.accept import accept_greedy, sampled_rejected
from kernels.accept_synthetic import SYNTHETIC_ONE, accept_synthetic
from kernels.advance import advance
from kernels.combine import combine
from kernels.draft_inputs import draft_inputs
from kernels.expand import expand_rows
from kernels.ngram import ngram_propose
from kernels.penalties import count_tokens
from kernels.prefill_inputs import prefill_inputs
from kernels.prepare import prepare
from tests.vectors.fields import (
    Inputs,
    Ints,
    by_row,
    by_slot,
    ints,
    live,
    num_slots,
    prefix_sum,
    request_rows,
    table_by_slot,
)

Launch = Callable[..., None]
Outputs = dict[str, Any]

POISON = -7
UNLIMITED = 2**30


def poisoned(*shape: int) -> Ints:
    return np.full(shape, POISON, np.int32)


def greedy_reject(launch: Launch, inputs: Inputs) -> Outputs:
    drafts = [list(row or []) for row in inputs["drafts"]]
    target = [list(row or []) for row in inputs.get("target") or [[]] * len(drafts)]
    bonus = list(inputs.get("bonus") or [None] * len(drafts))
    fed: list[int] = []
    argmax: list[int] = []
    for row_drafts, row_target, row_bonus in zip(drafts, target, bonus, strict=True):
        fed += [POISON, *row_drafts]
        argmax += [*row_target[: len(row_drafts)], POISON if row_bonus is None else row_bonus]
    cu = ints(np.cumsum([0, *(len(row) + 1 for row in drafts)]))
    width = max((len(row) for row in drafts), default=0) + 1
    sampled, _ = _walk(launch, cu, ints(fed), ints(argmax), width)
    return {"output": sampled}


def reject_rows(launch: Launch, inputs: Inputs) -> Outputs:
    """`synthetic_rate`: drafts are accepted at that rate, whatever the target says of them."""
    cu = ints(inputs["cu_num_logits"])
    k = inputs.get("num_speculative_tokens")
    width = int(k if k is not None else max(np.diff(cu), default=1) - 1) + 1
    walked = (ints(inputs["draft_sampled"]), ints(inputs["row_argmax"]), width, inputs.get("synthetic_rate"))
    sampled, num_sampled = _walk(launch, cu, *walked)
    return {"num_sampled": num_sampled, "tokens": [row[:n] for row, n in zip(sampled.tolist(), num_sampled, strict=True)]}


def _walk(launch: Launch, cu: Ints, fed: Ints, argmax: Ints, width: int, rate: float | None = None) -> tuple[Ints, Ints]:
    rows = len(cu) - 1
    sampled, num_sampled, num_drafts = poisoned(rows, width), poisoned(rows), poisoned(rows)
    indices = np.arange(len(fed), dtype=np.int32)
    walk = (sampled, num_sampled, num_drafts, argmax, fed, indices, cu)
    if rate is None:
        launch(accept_greedy, *walk, live(rows))
    else:
        launch(accept_synthetic, *walk, ints(range(rows)), indices, round(rate * SYNTHETIC_ONE), live(rows))
    return sampled, num_sampled


def combine_op(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    rows = len(mapping)
    slots = num_slots(inputs, mapping, "last_sampled", "prefill_len", "draft_tokens")
    query_start_loc = prefix_sum(inputs, "query_start_loc", rows)
    cu = prefix_sum(inputs, "cu_num_logits", rows)
    tokens = int(query_start_loc[-1])
    input_ids = ints(inputs["input_ids"] if inputs.get("input_ids") is not None else [0] * tokens).copy()
    logits_indices = poisoned(int(cu[-1]))
    bonus = inputs.get("bonus")
    launch(
        combine,
        input_ids,
        logits_indices,
        mapping,
        by_slot(inputs, "last_sampled", slots),
        query_start_loc,
        by_row(inputs, "seq_lens", rows),
        by_slot(inputs, "prefill_len", slots),
        table_by_slot(inputs, "draft_tokens", slots),
        cu,
        1 if bonus is None else int(bonus),
        live(rows),
    )
    return {"input_ids": input_ids, "logits_indices": logits_indices}


def sampled_rejected_op(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    rows = len(mapping)
    slots = num_slots(inputs, mapping, "prefill_len")
    num_sampled = by_row(inputs, "num_sampled", rows).copy()
    num_rejected = poisoned(rows)
    cu = prefix_sum(inputs, "cu_num_logits", rows)
    prefill_len = by_slot(inputs, "prefill_len", slots)
    launch(sampled_rejected, num_sampled, num_rejected, by_row(inputs, "seq_lens", rows), cu, mapping, prefill_len, live(rows))
    return {"num_sampled": num_sampled, "num_rejected": num_rejected}


def post_update(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    rows = len(mapping)
    slots = num_slots(inputs, mapping, "num_computed", "total_len", "last_sampled")
    sampled = table_by_slot(inputs, "sampled", max(rows, len(inputs.get("sampled") or [])))
    num_sampled = by_row(inputs, "num_sampled", rows, default=0).copy()
    total_len = by_slot(inputs, "total_len", slots)
    state = {
        "num_computed": by_slot(inputs, "num_computed", slots),
        "total_len": total_len.copy(),
        "last_sampled": by_slot(inputs, "last_sampled", slots),
        "history": np.zeros((slots, int(total_len.max()) + sampled.shape[1]), np.int32),
        "finished": by_slot(inputs, "finished", slots),
    }
    launch(
        advance,
        *state.values(),
        sampled,
        num_sampled,
        by_row(inputs, "num_rejected", rows, default=0),
        mapping,
        # null: the computed lengths were moved by the full query before, and only the rejected rows are taken back now.
        prefix_sum(inputs, "query_start_loc", rows, step=0),
        by_slot(inputs, "max_total_len", slots, UNLIMITED),
        by_slot(inputs, "min_total_len", slots),
        table_by_slot(inputs, "stop_ids", slots),
        live(rows),
    )
    vocab_size = inputs.get("vocab_size") or int(max(sampled.max(initial=0), 0)) + 1
    counts = np.zeros((slots, vocab_size), np.int32)
    launch(count_tokens, counts, sampled, num_sampled, mapping, live(rows))
    return {**state, "counts": counts, "sampled": sampled, "num_sampled": num_sampled}


def prepare_positions(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    rows = len(mapping)
    slots = num_slots(inputs, mapping, "num_computed")
    query_start_loc = ints(inputs["query_start_loc"])
    num_computed = by_slot(inputs, "num_computed", slots)
    tokens = int(query_start_loc[rows])
    positions, token_slot, slot_mapping = poisoned(tokens), poisoned(tokens), poisoned(tokens)
    seq_lens = poisoned(max(rows, inputs.get("max_num_seqs") or 0))
    max_model_len = int(num_computed.max()) + tokens + 1
    tables = np.zeros((slots, 1), np.int32)
    launch(
        prepare,
        positions,
        seq_lens,
        token_slot,
        slot_mapping,
        num_computed,
        mapping,
        query_start_loc,
        tables,
        max_model_len,
        max_model_len,
        live(rows),
    )
    return {"positions": positions, "seq_lens": seq_lens}


def slot_mapping_op(launch: Launch, inputs: Inputs) -> Outputs:
    """Positions of a vector need not be consecutive: each token becomes a row and a slot of its own, computed up to itself."""
    mapping = request_rows(inputs)
    positions_in = ints(inputs["positions"])
    tokens = len(positions_in)
    query_start_loc = prefix_sum(inputs, "query_start_loc", len(mapping))
    slot_of_token = np.repeat(mapping, np.diff(query_start_loc))[:tokens]
    tables = table_by_slot(inputs, "block_tables", num_slots(inputs, mapping, "block_tables"))
    tables = ints(np.where(slot_of_token[:, None] < 0, -1, tables[slot_of_token]))
    block_size = int(inputs["block_size"])
    capacity = max(tokens, inputs.get("pad_to") or 0)
    positions, seq_lens, token_slot, slot_mapping = (poisoned(capacity) for _ in range(4))
    launch(
        prepare,
        positions,
        seq_lens,
        token_slot,
        slot_mapping,
        positions_in,
        np.arange(tokens, dtype=np.int32),
        np.arange(tokens + 1, dtype=np.int32),
        tables,
        block_size,
        inputs.get("max_model_len") or tables.shape[1] * block_size,
        live(tokens),
    )
    return {"slot_mapping": slot_mapping}


def prefill_inputs_op(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    rows = len(mapping)
    slots = num_slots(inputs, mapping, "history", "prefill_len", "num_computed")
    query_start_loc = prefix_sum(inputs, "query_start_loc", rows)
    input_ids = ints(inputs.get("input_ids") or [0] * int(query_start_loc[rows]))
    next_prefill = by_slot(inputs, "next_prefill", slots)
    launch(
        prefill_inputs,
        input_ids,
        next_prefill,
        table_by_slot(inputs, "history", slots),
        by_slot(inputs, "prefill_len", slots),
        by_slot(inputs, "num_computed", slots),
        mapping,
        query_start_loc,
        live(rows),
    )
    return {"input_ids": input_ids, "next_prefill": next_prefill}


def expand_rows_op(launch: Launch, inputs: Inputs) -> Outputs:
    mapping = request_rows(inputs)
    cu = prefix_sum(inputs, "cu_num_logits", len(mapping))
    slot_of_row, local_position = poisoned(int(cu[-1])), poisoned(int(cu[-1]))
    launch(expand_rows, slot_of_row, local_position, mapping, cu, live(len(mapping)))
    return {"slot_of_row": slot_of_row, "local_position": local_position}


def draft_inputs_op(launch: Launch, inputs: Inputs) -> Outputs:
    """Positions of several axes (M-RoPE) are moved axis by axis; the first one addresses the cache."""
    axes = np.atleast_2d(ints(inputs["target_positions"]))
    rows = axes.shape[1]
    seq_lens_in = by_row(inputs, "seq_lens", rows)
    tables = table_by_slot(inputs, "block_tables", max(rows, len(inputs["block_tables"])))
    capacity = max(rows, inputs.get("pad_to") or 0)
    results = []
    for axis in axes:
        positions, slot_mapping, seq_lens = poisoned(capacity), poisoned(capacity), poisoned(capacity)
        block_size, max_model_len = int(inputs["block_size"]), int(inputs["max_model_len"])
        target = ints(axis)
        launch(draft_inputs, positions, slot_mapping, seq_lens, target, seq_lens_in, tables, block_size, max_model_len, live(rows))
        results.append((positions, slot_mapping, seq_lens))
    positions_out = results[0][0] if np.ndim(inputs["target_positions"]) == 1 else np.stack([result[0] for result in results])
    return {"positions": positions_out, "slot_mapping": results[0][1], "seq_lens": results[0][2]}


def ngram(launch: Launch, inputs: Inputs) -> Outputs:
    tokens = list(inputs["tokens"])
    min_n = int(inputs.get("min_n") or inputs.get("max_n") or 1)
    max_n = int(inputs.get("max_n") or min_n)
    drafts, num_draft = poisoned(1, int(inputs["num_speculative_tokens"])), poisoned(1)
    # One token more than there is: a match that reached behind the end would draft it.
    history = ints([[*tokens, tokens[0] if tokens else 0]])
    zero = ints([0])
    launch(ngram_propose, drafts, num_draft, history, ints([len(tokens)]), zero, zero, ints([1]), min_n, max_n, live(1))
    return {"drafts": drafts[0, : num_draft[0]]}


STEP_OPS: dict[str, Callable[[Launch, Inputs], Outputs]] = {
    "greedy_reject": greedy_reject,
    "reject_rows": reject_rows,
    "combine": combine_op,
    "sampled_rejected": sampled_rejected_op,
    "post_update": post_update,
    "prepare_positions": prepare_positions,
    "slot_mapping": slot_mapping_op,
    "prefill_inputs": prefill_inputs_op,
    "expand_rows": expand_rows_op,
    "draft_inputs": draft_inputs_op,
    "ngram": ngram,
}
