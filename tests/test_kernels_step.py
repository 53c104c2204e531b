"""Kernels of the inputs of a step against their oracles, and its beginning and end in a launch each, over ragged mixed steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.begin_step import begin_step
from kernels.combine import combine
from kernels.draft_inputs import draft_inputs
from kernels.end_step import end_step
from kernels.expand import expand_rows
from kernels.prefill_inputs import prefill_inputs
from kernels.prepare import prepare
from kernels.publish import OUTCOME_FIELDS
from kernels.slots import admit
from tests.kernel_cases import Launch, ints, live, poisoned
from tests.step_cases import BLOCK_SIZE, HISTORY, Step, all_kinds, steps
from tests.step_launches import (
    ADVANCE_LIMITS,
    ADVANCE_STATE,
    check_advance,
    every_launch,
    fed_step,
    launch_drawn,
    out,
    poisoned_state,
    quick,
    random_limits,
)


def check_prepare(step: Step, launch: Launch) -> None:
    names = ("num_computed", "idx_mapping", "query_start_loc", "block_tables", "num_requests")
    capacity_rows = len(step.rows["idx_mapping"])
    args = {
        "positions": out(step.tokens_capacity),
        "seq_lens": out(capacity_rows),
        "token_slot": out(step.tokens_capacity),
        "slot_mapping": out(step.tokens_capacity),
        "block_size": BLOCK_SIZE,
        "max_model_len": step.max_model_len,
        **step.arguments(*names),
    }
    written = oracle.prepare(
        step.tokens_capacity,
        capacity_rows,
        step.slots["num_computed"],
        *step.live_rows("idx_mapping", "query_start_loc"),
        step.slots["block_tables"],
        BLOCK_SIZE,
        step.max_model_len,
    )
    launch.check(prepare, args, dict(zip(("positions", "seq_lens", "token_slot", "slot_mapping"), written, strict=True)))


@quick
@given(steps(), launch_drawn)
def test_prepare_is_its_oracle(step: Step, launch: Launch) -> None:
    check_prepare(step, launch)


@every_launch
def test_prepare_at_every_launch(launch: Launch) -> None:
    check_prepare(all_kinds(1), launch)


@every_launch
def test_prepare_stores_nothing_past_the_model_the_table_or_a_missing_block(launch: Launch) -> None:
    """Max length 10 of 12 in the table; slot 1's second block was not given out; slot 5 does not exist."""
    args = {
        "positions": out(12),
        "seq_lens": out(4),
        "token_slot": out(12),
        "slot_mapping": out(12),
        "num_computed": ints(8, 3),
        "idx_mapping": ints(0, 1, 5, -7),
        "query_start_loc": ints(0, 4, 7, 9, -7),
        "block_tables": ints([1, 2, 9], [4, -1, -1]),
        "block_size": 4,
        "max_model_len": 10,
        "num_requests": live(3),
    }
    expected = {
        "positions": ints(8, 9, 9, 9, 3, 4, 5, 0, 0, 0, 0, 0),
        "seq_lens": ints(12, 6, 0, 0),
        "token_slot": ints(0, 0, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1),
        "slot_mapping": ints(36, 37, -1, -1, 19, -1, -1, -1, -1, -1, -1, -1),
    }
    launch.check(prepare, args, expected)


# --- prefill inputs ----------------------------------------------------------------------------------------------------------


@quick
@given(steps(), launch_drawn)
def test_prefill_inputs_is_its_oracle(step: Step, launch: Launch) -> None:
    names = ("next_prefill", "history", "prefill_len", "num_computed", "idx_mapping", "query_start_loc", "num_requests")
    args = {"input_ids": step.input_ids(), **step.arguments(*names)}
    written = oracle.prefill_inputs(
        *(args[name] for name in ("input_ids", "next_prefill", "history", "prefill_len", "num_computed")),
        *step.live_rows("idx_mapping", "query_start_loc"),
    )
    launch.check(prefill_inputs, args, dict(zip(("input_ids", "next_prefill"), written, strict=True)))


# --- expand, drafter inputs --------------------------------------------------------------------------------------------------


@quick
@given(steps(), launch_drawn)
def test_expand_is_its_oracle(step: Step, launch: Launch) -> None:
    args = {
        "slot_of_row": out(step.logits_capacity),
        "local_position": out(step.logits_capacity),
        **step.arguments("idx_mapping", "cu_num_logits", "num_requests"),
    }
    expected = {"slot_of_row": args["slot_of_row"].copy(), "local_position": args["local_position"].copy()}
    for array, values in zip(expected.values(), oracle.expand_rows(*step.live_rows("idx_mapping", "cu_num_logits")), strict=True):
        array[: step.num_logits] = values
    launch.check(expand_rows, args, expected)


@quick
@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.integers(0, 3), st.integers(0, 2**32 - 1), launch_drawn)
def test_draft_inputs_is_its_oracle(positions: list[int], pads: int, seed: int, launch: Launch) -> None:
    rng = np.random.default_rng(seed)
    rows, capacity = len(positions), len(positions) + pads
    tables = rng.integers(-1, 40, (capacity, 4)).astype(np.int32)
    target = poisoned(ints(*positions, *[0] * pads), rows)
    seq_lens = poisoned(ints(*(p + 1 for p in positions), *[0] * pads), rows)
    args = {
        "positions": out(capacity),
        "slot_mapping": out(capacity),
        "seq_lens": out(capacity),
        "target_positions": target,
        "seq_lens_in": seq_lens,
        "block_tables": tables,
        "block_size": BLOCK_SIZE,
        "max_model_len": 18,
        "num_requests": live(rows),
    }
    written = oracle.draft_inputs(target[:rows], seq_lens[:rows], tables, BLOCK_SIZE, 18, capacity)
    launch.check(draft_inputs, args, dict(zip(("positions", "slot_mapping", "seq_lens"), written, strict=True)))


# --- a slot through several steps --------------------------------------------------------------------------------------------


@every_launch
def test_a_slot_reused_with_its_prompt_computed_begins_with_its_own_last_token(launch: Launch) -> None:
    """The previous owner's last token and drafts are in the slot; the next owner's cache is found elsewhere (computed = prompt)."""
    state = poisoned_state()
    state["last_sampled"][1], state["draft_tokens"][1] = 999, [991, 992, 993]
    arrays = {**state, "record": ints(1, 5, 5, 9, 0, 0, 0, 0, -1, -1), "tokens": ints(41, 42, 43, 44, 45)}
    launch.run(admit, *(arrays[name] for name in admit.params))
    input_ids = out(3)
    args = {
        "input_ids": input_ids,
        "logits_indices": out(3),
        "idx_mapping": ints(1),
        "query_start_loc": ints(0, 3),
        "seq_lens": ints(8),
        "cu_num_logits": ints(0, 3),
        "bonus": 1,
        "num_requests": live(1),
        **{name: state[name] for name in ("last_sampled", "prefill_len", "draft_tokens")},
    }
    launch.run(combine, *(args[name] for name in combine.params))
    assert input_ids.tolist() == [45, -1, -1]


def test_steps_reach_the_interesting_cases() -> None:
    """The generated steps are no proof of anything unless these occur: partial acceptance, -1 drafts, stops inside, the limit."""
    seen: set[str] = set()
    for seed in range(30):
        step = all_kinds(seed)
        ids, indices, argmax = fed_step(step)
        mapping, seq_lens, cu = step.live_rows("idx_mapping", "seq_lens", "cu_num_logits")
        _, walked, num_drafts = oracle.accept_greedy(step.k + 1, argmax, ids, indices, cu, step.num_requests)
        num_sampled, num_rejected = oracle.sampled_rejected(walked, seq_lens, cu, mapping, step.slots["prefill_len"])
        expected = check_advance(all_kinds(seed), Launch("cpu"))
        seen |= {"partial"} if ((num_sampled > 1) & (num_rejected > 0)).any() else set()
        seen |= {"full"} if ((num_sampled > 1) & (num_rejected == 0)).any() else set()
        seen |= {"placeholder"} if (num_drafts < np.diff(cu) - 1).any() else set()
        seen |= {"stop"} if (expected["finished"] == 1).any() else set()
        seen |= {"length"} if (expected["finished"] == 2).any() else set()
        seen |= {"limit"} if (seq_lens > HISTORY).any() else set()
    assert seen == {"partial", "full", "placeholder", "stop", "length", "limit"}


# --- begin and end in one launch each ----------------------------------------------------------------------------------------


def check_begin(step: Step, launch: Launch) -> None:
    """With staged blocks that the rows of this very step stand in."""
    rows, capacity = len(step.rows["idx_mapping"]), step.tokens_capacity
    names = ("num_computed", "idx_mapping", "query_start_loc", "cu_num_logits", "history", "prefill_len", "last_sampled")
    state: dict[str, Any] = step.arguments(*names, "draft_tokens", "next_prefill", "num_requests")
    slots, columns = step.slots["block_tables"].shape
    writes = np.array([(step.rng.integers(slots), step.rng.integers(columns), 90 + i) for i in range(5)], np.int32)
    args = {
        "block_tables": step.slots["block_tables"],
        "positions": out(capacity),
        "seq_lens": out(rows),
        "token_slot": out(capacity),
        "slot_mapping": out(capacity),
        "input_ids": step.input_ids(),
        "logits_indices": out(step.logits_capacity),
        "block_writes": writes,
        "num_block_writes": live(4),
        **state,
    }
    expected = oracle.begin_step(args, step.num_requests, BLOCK_SIZE, step.max_model_len)
    one_block = Launch(launch.executor, 1, launch.block)
    one_block.check(begin_step, {**args, "block_size": BLOCK_SIZE, "max_model_len": step.max_model_len}, expected)


@quick
@given(steps(), launch_drawn)
def test_begin_is_its_oracle(step: Step, launch: Launch) -> None:
    check_begin(step, launch)


def check_end(step: Step, launch: Launch) -> None:
    ids, indices, argmax = fed_step(step)
    cu = step.live_rows("cu_num_logits")[0]
    rows, live_rows = len(step.rows["idx_mapping"]), slice(step.num_requests)
    walked = oracle.accept_greedy(step.k + 1, argmax, ids, indices, cu, step.num_requests)
    sampled, num_sampled, num_drafts = out(rows, step.k + 1), out(rows), out(rows)
    sampled[live_rows], num_sampled[live_rows], num_drafts[live_rows] = walked
    random_limits(step, walked[0], walked[1])
    names = (*ADVANCE_STATE, *ADVANCE_LIMITS, "idx_mapping", "query_start_loc", "cu_num_logits", "seq_lens", "prefill_len")
    args = {
        "outcome": out(1, rows, OUTCOME_FIELDS + step.k + 1),
        "sampled": sampled,
        "num_sampled": num_sampled,
        "num_rejected": out(rows),
        "num_drafts": num_drafts,
        **step.arguments(*names, "num_requests"),
    }
    launch.check(end_step, args, oracle.end_step(args, step.num_requests))


@quick
@given(steps(), launch_drawn)
def test_end_is_its_oracle(step: Step, launch: Launch) -> None:
    check_end(step, launch)
