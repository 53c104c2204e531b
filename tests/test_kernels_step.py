"""Step kernels against their oracles: ragged mixed steps, every launch shape, and each guard by a case that needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.accept import accept_greedy, sampled_rejected
from kernels.advance import advance
from kernels.begin_step import begin_step
from kernels.combine import check_arguments, combine
from kernels.draft_inputs import draft_inputs
from kernels.end_step import end_step
from kernels.expand import expand_rows
from kernels.lang import SIMULATED
from kernels.ngram import ngram_propose
from kernels.penalties import count_tokens
from kernels.prefill_inputs import prefill_inputs
from kernels.prepare import prepare
from kernels.publish import OUTCOME_FIELDS
from kernels.slots import RECORD_FIELDS, admit, staged_write
from tests.kernel_cases import Launch, launches, live, poisoned, untouched
from tests.step_cases import BLOCK_SIZE, HISTORY, Ints, Step, all_kinds, partly_accepted, steps

SHAPES = [(1, 1), (1, 3), (2, 32), (3, 2)]
SIMULATED_LAUNCHES = [Launch("simulator", grid, block) for grid, block in SHAPES] if SIMULATED else [Launch("cpu")]
every_launch = launches(*SHAPES)
launch_drawn = st.sampled_from([Launch("cpu"), *SIMULATED_LAUNCHES])
quick = settings(max_examples=40, deadline=None, derandomize=True)


def ints(*values: Any) -> Ints:
    return np.array(values, np.int32)


def out(*shape: int) -> Ints:
    return untouched(*shape, dtype=np.int32)


# --- prepare -----------------------------------------------------------------------------------------------------------------


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


# --- combine -----------------------------------------------------------------------------------------------------------------

COMBINE_NAMES = ("idx_mapping", "last_sampled", "query_start_loc", "seq_lens", "prefill_len", "draft_tokens", "cu_num_logits")


def check_combine(step: Step, launch: Launch, bonus: int) -> None:
    args = {
        "input_ids": step.input_ids(),
        "logits_indices": out(step.logits_capacity),
        "bonus": bonus,
        **step.arguments(*COMBINE_NAMES, "num_requests"),
    }
    mapping, query_start_loc, seq_lens, cu = step.live_rows("idx_mapping", "query_start_loc", "seq_lens", "cu_num_logits")
    slots = step.slots
    written = oracle.combine(
        args["input_ids"],
        args["logits_indices"],
        mapping,
        slots["last_sampled"],
        query_start_loc,
        seq_lens,
        slots["prefill_len"],
        slots["draft_tokens"],
        cu,
        bonus,
    )
    launch.check(combine, args, dict(zip(("input_ids", "logits_indices"), written, strict=True)))


@quick
@given(steps(), launch_drawn, st.sampled_from([0, 1]))
def test_combine_is_its_oracle(step: Step, launch: Launch, bonus: int) -> None:
    check_combine(step, launch, bonus)


@every_launch
def test_combine_at_every_launch(launch: Launch) -> None:
    check_combine(all_kinds(2), launch, bonus=1)


def combine_by_hand(launch: Launch, expected_ids: Ints, expected_indices: Ints, **changes: Any) -> None:
    args = {
        "input_ids": ints(10, 11, 12, 13),
        "logits_indices": out(len(expected_indices)),
        "idx_mapping": ints(1, 0),
        "last_sampled": ints(500, 501),
        "query_start_loc": ints(0, 2, 4),
        "seq_lens": ints(9, 9),
        "prefill_len": ints(5, 5),
        "draft_tokens": ints([70], [71]),
        "cu_num_logits": ints(0, 2, 4),
        "bonus": 1,
        "num_requests": live(2),
        **changes,
    }
    launch.check(combine, args, {"input_ids": expected_ids, "logits_indices": expected_indices})


@every_launch
@pytest.mark.parametrize("slot", [-1, 2])
def test_combine_leaves_a_row_of_no_slot_alone(launch: Launch, slot: int) -> None:
    combine_by_hand(launch, ints(10, 11, 500, 70), ints(0, 1, 2, 3), idx_mapping=ints(slot, 0))


@every_launch
def test_combine_never_writes_into_the_row_before(launch: Launch) -> None:
    """Row 1 asks for three logits rows of its two tokens: the host refuses that; a kernel that meets it writes nothing there."""
    combine_by_hand(launch, ints(501, 71, 12, 13), ints(0, 1, 1, 2, 3), cu_num_logits=ints(0, 2, 5))


@every_launch
def test_combine_reads_no_draft_beyond_the_stride(launch: Launch) -> None:
    """Two drafts with a stride of one: the second is a placeholder, never the first of the next slot."""
    changes = {"idx_mapping": ints(0, 1), "query_start_loc": ints(0, 3, 4), "cu_num_logits": ints(0, 3, 3)}
    combine_by_hand(launch, ints(500, 70, -1, 13), ints(0, 1, 2), **changes)


def good_arguments(**changes: Any) -> dict[str, Any]:
    return {
        "cu_num_logits": [0, 3, 4],
        "query_start_loc": [0, 3, 9],
        "idx_mapping": [2, 0],
        "draft_shape": (3, 2),
        "num_slots": 3,
        "bonus": 1,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cu_num_logits": [0, 3]}, "cu_num_logits has 2 entries for 2 requests: pass R"),
        ({"query_start_loc": [0, 3, 9, 9]}, "query_start_loc has 4 entries"),
        ({"cu_num_logits": [1, 3, 4]}, r"cu_num_logits\[0\] = 1"),
        ({"cu_num_logits": [0, 3, 3]}, "drafts of row 1 = -1"),
        ({"cu_num_logits": [0, 2, 1], "bonus": 0}, "drafts of row 1 = -1"),
        ({"draft_shape": (3, 1)}, "row 0 has 2 drafts, the stride of the draft pool is 1"),
        ({"draft_shape": (2, 2)}, "draft pool has 2 rows for 3 slots"),
        ({"bonus": 2}, "bonus = 2"),
        ({"bonus": -1}, "bonus = -1"),
        ({"idx_mapping": [3, 0]}, r"idx_mapping\[0\] = 3"),
        ({"idx_mapping": [-1, 0]}, r"idx_mapping\[0\] = -1"),
        ({"query_start_loc": [0, 2, 9]}, "row 0 asks for 3 logits rows of 2 tokens"),
        ({"query_start_loc": [0, 3, 2]}, "query length of row 1 = -1"),
    ],
)
def test_check_arguments_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arguments(**good_arguments(**changes))


@pytest.mark.parametrize("changes", [{}, {"cu_num_logits": [0, 2, 2], "bonus": 0}, {"draft_shape": (3, 7)}])
def test_check_arguments_accepts(changes: dict[str, Any]) -> None:
    check_arguments(**good_arguments(**changes))


def test_check_arguments_accepts_every_step() -> None:
    for seed in range(20):
        step = all_kinds(seed)
        mapping, query_start_loc, cu = (row.tolist() for row in step.live_rows("idx_mapping", "query_start_loc", "cu_num_logits"))
        shape = step.slots["draft_tokens"].shape
        check_arguments(
            cu_num_logits=cu, query_start_loc=query_start_loc, idx_mapping=mapping, draft_shape=shape, num_slots=shape[0], bonus=1
        )


# --- accept ------------------------------------------------------------------------------------------------------------------


def fed_step(step: Step) -> tuple[Ints, Ints, Ints]:
    """(input_ids, logits_indices, row_argmax) of a step after its combine, by the oracle."""
    mapping, query_start_loc, seq_lens, cu = step.live_rows("idx_mapping", "query_start_loc", "seq_lens", "cu_num_logits")
    slots = step.slots
    ids, indices = oracle.combine(
        step.input_ids(),
        out(step.logits_capacity),
        mapping,
        slots["last_sampled"],
        query_start_loc,
        seq_lens,
        slots["prefill_len"],
        slots["draft_tokens"],
        cu,
        1,
    )
    return ids, indices, partly_accepted(step, ids, indices)


def check_accept(step: Step, launch: Launch, extra_width: int) -> None:
    ids, indices, argmax = fed_step(step)
    rows, width = len(step.rows["idx_mapping"]), step.k + 1 + extra_width
    args = {
        "sampled": out(rows, width),
        "num_sampled": out(rows),
        "num_drafts": out(rows),
        "row_argmax": argmax,
        "input_ids": ids,
        "logits_indices": indices,
        **step.arguments("cu_num_logits", "num_requests"),
    }
    written = oracle.accept_greedy(width, argmax, ids, indices, step.rows["cu_num_logits"], step.num_requests)
    expected = {"sampled": out(rows, width), "num_sampled": out(rows), "num_drafts": out(rows)}
    for array, values in zip(expected.values(), written, strict=True):
        array[: step.num_requests] = values
    launch.check(accept_greedy, args, expected)


@quick
@given(steps(), launch_drawn, st.integers(0, 2))
def test_accept_is_its_oracle(step: Step, launch: Launch, extra_width: int) -> None:
    check_accept(step, launch, extra_width)


@every_launch
def test_accept_at_every_launch(launch: Launch) -> None:
    check_accept(all_kinds(3), launch, extra_width=0)


@every_launch
@pytest.mark.parametrize(
    ("fed", "argmax", "sampled", "num_sampled", "num_drafts"),
    [
        ([9, 5, 6], [5, 6, 7], [5, 6, 7], 3, 2),
        ([5, 4, 6], [5, 6, 7], [5, -1, -1], 1, 2),  # the committed token is never compared
        ([9, 5, -1], [5, 6, 7], [5, 6, -1], 2, 1),
        ([9, -1, 6], [5, 6, 7], [5, -1, -1], 1, 1),  # nothing behind a placeholder is accepted
        ([9, -1, -1], [-1, -1, -1], [-1, -1, -1], 1, 0),  # a placeholder does not match an argmax of -1
        ([9, 0, 6], [0, 0, 7], [0, 0, -1], 2, 2),  # id 0 is a token
        ([9], [5], [5, -1, -1], 1, 0),
        ([], [], [-1, -1, -1], 0, 0),
    ],
)
def test_accept_by_hand(
    launch: Launch, fed: list[int], argmax: list[int], sampled: list[int], num_sampled: int, num_drafts: int
) -> None:
    """Between two rows that accept everything, with input ids in another order than logits rows."""
    ids = ints(1, 2, *fed, 3)[::-1].copy()
    indices = np.arange(len(ids), dtype=np.int32)[::-1].copy()
    args = {
        "sampled": out(3, 3),
        "num_sampled": out(3),
        "num_drafts": out(3),
        "row_argmax": ints(2, 4, *argmax, 8),
        "input_ids": ids,
        "logits_indices": indices,
        "cu_num_logits": ints(0, 2, 2 + len(fed), 3 + len(fed)),
        "num_requests": live(3),
    }
    expected = {
        "sampled": ints([2, 4, -1], sampled, [8, -1, -1]),
        "num_sampled": ints(2, num_sampled, 1),
        "num_drafts": ints(1, num_drafts, 0),
    }
    launch.check(accept_greedy, args, expected)


@every_launch
def test_accept_never_writes_beyond_its_width(launch: Launch) -> None:
    args = {
        "sampled": out(2, 2),
        "num_sampled": out(2),
        "num_drafts": out(2),
        "row_argmax": ints(1, 2, 3, 4),
        "input_ids": ints(9, 1, 2, 3),
        "logits_indices": ints(0, 1, 2, 3),
        "cu_num_logits": ints(0, 4, 4),
        "num_requests": live(2),
    }
    launch.check(accept_greedy, args, {"sampled": ints([1, 2], [-1, -1]), "num_sampled": ints(2, 0), "num_drafts": ints(3, 0)})


@quick
@given(steps(), launch_drawn)
def test_sampled_rejected_is_its_oracle(step: Step, launch: Launch) -> None:
    ids, indices, argmax = fed_step(step)
    mapping, seq_lens, cu = step.live_rows("idx_mapping", "seq_lens", "cu_num_logits")
    _, num_sampled, _ = oracle.accept_greedy(step.k + 1, argmax, ids, indices, cu, step.num_requests)
    rows = len(step.rows["idx_mapping"])
    before = out(rows)
    before[: step.num_requests] = num_sampled
    args = {
        "num_sampled": before,
        "num_rejected": out(rows),
        **step.arguments("seq_lens", "cu_num_logits", "idx_mapping", "prefill_len", "num_requests"),
    }
    expected = {"num_sampled": before.copy(), "num_rejected": out(rows)}
    written = oracle.sampled_rejected(num_sampled, seq_lens, cu, mapping, step.slots["prefill_len"])
    for array, values in zip(expected.values(), written, strict=True):
        array[: step.num_requests] = values
    launch.check(sampled_rejected, args, expected)


@every_launch
def test_a_prompt_chunk_that_carries_drafts_emits_and_rejects_nothing(launch: Launch) -> None:
    args = {
        "num_sampled": ints(2, 2, 1, -7),
        "num_rejected": out(4),
        "seq_lens": ints(7, 8, 9, -7),
        "cu_num_logits": ints(0, 3, 6, 9, -7),
        "idx_mapping": ints(1, 0, 2, -7),
        "prefill_len": ints(8, 8, 8),
        "num_requests": live(3),
    }
    launch.check(sampled_rejected, args, {"num_sampled": ints(0, 2, 1, -7), "num_rejected": ints(0, 1, 2, -7)})


# --- advance -----------------------------------------------------------------------------------------------------------------

ADVANCE_STATE = ("num_computed", "total_len", "last_sampled", "history", "finished")
ADVANCE_LIMITS = ("max_total_len", "min_total_len", "stop_ids")


def random_limits(step: Step, sampled: Ints, counts: Ints) -> None:
    """Stops and limits, of which many fall inside the emitted block."""
    slots, rng = step.slots, step.rng
    for row, slot in enumerate(step.live_rows("idx_mapping")[0]):
        emitted, total = sampled[row, : counts[row]], int(slots["total_len"][slot])
        if len(emitted) and rng.random() < 0.5:
            slots["stop_ids"][slot, rng.integers(0, 3)] = rng.choice(emitted)
        if rng.random() < 0.3:
            slots["max_total_len"][slot] = total + rng.integers(0, step.k + 2)
        if rng.random() < 0.3:
            slots["min_total_len"][slot] = total + rng.integers(0, step.k + 2)


def check_advance(step: Step, launch: Launch) -> dict[str, Ints]:
    """Returns the expected state."""
    ids, indices, argmax = fed_step(step)
    slots = step.slots
    mapping, query_start_loc, seq_lens, cu = step.live_rows("idx_mapping", "query_start_loc", "seq_lens", "cu_num_logits")
    sampled_live, walked, _ = oracle.accept_greedy(step.k + 1, argmax, ids, indices, cu, step.num_requests)
    num_sampled_live, num_rejected_live = oracle.sampled_rejected(walked, seq_lens, cu, mapping, slots["prefill_len"])
    random_limits(step, sampled_live, num_sampled_live)
    rows = len(step.rows["idx_mapping"])
    sampled, num_sampled, num_rejected = out(rows, step.k + 1), out(rows), out(rows)
    live_rows = slice(step.num_requests)
    sampled[live_rows], num_sampled[live_rows], num_rejected[live_rows] = sampled_live, num_sampled_live, num_rejected_live
    names = (*ADVANCE_STATE, *ADVANCE_LIMITS, "idx_mapping", "query_start_loc", "num_requests")
    args = {"sampled": sampled, "num_sampled": num_sampled, "num_rejected": num_rejected, **step.arguments(*names)}
    expected = oracle.advance(
        *(slots[name] for name in ADVANCE_STATE),
        sampled,
        num_sampled,
        num_rejected,
        mapping,
        query_start_loc,
        *(slots[name] for name in ADVANCE_LIMITS),
    )
    launch.check(advance, args, expected)
    for row, slot in enumerate(mapping):
        if num_sampled_live[row] and not slots["finished"][slot]:
            assert expected["num_computed"][slot] == expected["total_len"][slot] - 1
    return expected


@settings(quick, max_examples=80)
@given(steps(), launch_drawn)
def test_advance_is_its_oracle(step: Step, launch: Launch) -> None:
    check_advance(step, launch)


@every_launch
def test_advance_at_every_launch(launch: Launch) -> None:
    check_advance(all_kinds(4), launch)


def advance_one(launch: Launch, emitted: list[int], **changes: Any) -> dict[str, Ints]:
    """Slot 1 of 2 with total 10, computed 9, k = 3 and these tokens; returns what the kernel wrote."""
    args = {
        "num_computed": ints(-7, 9),
        "total_len": ints(-7, 10),
        "last_sampled": ints(-7, 600),
        "history": np.full((2, 16), -7, np.int32),
        "finished": ints(0, 0),
        "sampled": ints([*emitted, *[-1] * (4 - len(emitted))]),
        "num_sampled": ints(len(emitted)),
        "num_rejected": ints(4 - len(emitted)),
        "idx_mapping": ints(1),
        "query_start_loc": ints(0, 4),
        "max_total_len": ints(0, 16),
        "min_total_len": ints(0, 0),
        "stop_ids": ints([-1, -1], [-1, -1]),
        "num_requests": live(1),
        **changes,
    }
    launch.run(advance, *(args[name] for name in advance.params))
    assert args["num_computed"][0] == args["total_len"][0] == args["last_sampled"][0] == -7
    assert (args["history"][0] == -7).all()
    return {name: args[name] for name in advance.writes}


@every_launch
@pytest.mark.parametrize(
    ("changes", "kept", "finished"),
    [
        ({}, 4, 0),
        ({"stop_ids": ints([-1, -1], [-1, 21])}, 1, 1),  # the first token
        ({"stop_ids": ints([-1, -1], [23, 22])}, 2, 1),  # the first of two stops in the block
        ({"stop_ids": ints([-1, -1], [24, -1])}, 4, 1),  # the bonus token
        ({"stop_ids": ints([21, 22], [-1, -1])}, 4, 0),  # another slot's stops
        ({"stop_ids": ints([-1, -1], [21, 23]), "min_total_len": ints(0, 12)}, 3, 1),  # 21 comes too early
        ({"stop_ids": ints([-1, -1], [22, -1]), "min_total_len": ints(0, 12)}, 2, 1),  # the length with the stop counts
        ({"stop_ids": ints([-1, -1], [22, -1]), "min_total_len": ints(0, 13)}, 4, 0),
        ({"max_total_len": ints(0, 12)}, 2, 2),
        ({"max_total_len": ints(0, 14)}, 4, 2),
        ({"max_total_len": ints(0, 12), "stop_ids": ints([-1, -1], [22, -1])}, 2, 1),  # both at once: the stop is reported
        ({"max_total_len": ints(0, 11), "stop_ids": ints([-1, -1], [22, -1])}, 1, 2),  # the limit comes first
        ({"max_total_len": ints(0, 10)}, 0, 2),
        ({"finished": ints(0, 1)}, 0, 1),
        ({"finished": ints(0, 2)}, 0, 2),
    ],
)
def test_advance_cuts_the_block_at_the_first_stop(launch: Launch, changes: dict[str, Ints], kept: int, finished: int) -> None:
    was_finished = bool(changes.get("finished", ints(0, 0))[1])
    after = advance_one(launch, [21, 22, 23, 24], **{name: value.copy() for name, value in changes.items()})
    tokens = [21, 22, 23, 24][:kept]
    assert after["sampled"].tolist() == [tokens + [-1] * (4 - kept)]
    assert after["num_sampled"].tolist() == [kept]
    assert after["finished"][1] == finished
    assert after["total_len"][1] == 10 + kept
    assert after["num_computed"][1] == 9 + (0 if was_finished else kept)
    assert after["last_sampled"][1] == (tokens[-1] if kept else 600)
    assert after["history"][1].tolist() == [-7] * 10 + tokens + [-7] * (6 - kept)


@every_launch
def test_advance_writes_no_history_beyond_its_end(launch: Launch) -> None:
    """History of 12 with a limit of 16: two of four tokens fit, in a slot that is followed by another."""
    after = advance_one(
        launch,
        [21, 22, 23, 24],
        num_computed=ints(-7, 9, -7),
        total_len=ints(-7, 10, -7),
        last_sampled=ints(-7, 600, -7),
        history=np.full((3, 12), -7, np.int32),
        finished=ints(0, 0, 0),
        max_total_len=ints(0, 16, 0),
        min_total_len=ints(0, 0, 0),
        stop_ids=ints([-1], [-1], [-1]),
    )
    assert after["history"].tolist() == [[-7] * 12, [-7] * 10 + [21, 22], [-7] * 12]
    assert after["total_len"].tolist() == [-7, 14, -7]


@every_launch
def test_advance_of_a_prompt_chunk_moves_only_the_computed_length(launch: Launch) -> None:
    after = advance_one(launch, [], num_rejected=ints(0), max_total_len=ints(0, 10))
    assert (after["num_computed"][1], after["total_len"][1], after["finished"][1], after["last_sampled"][1]) == (13, 10, 0, 600)


@every_launch
@pytest.mark.parametrize("slot", [-1, 2])
def test_advance_of_a_row_without_a_slot_keeps_nothing(launch: Launch, slot: int) -> None:
    after = advance_one(launch, [21, 22], idx_mapping=ints(slot))
    assert after["num_sampled"].tolist() == [0]
    assert (after["sampled"] == -1).all()
    assert (after["num_computed"][1], after["total_len"][1]) == (9, 10)


# --- counts ------------------------------------------------------------------------------------------------------------------


@every_launch
def test_counts_are_of_the_tokens_kept(launch: Launch) -> None:
    sampled = ints([3, 3, 1, 5], [2, 9, -1, -1], [4, 4, 4, 4], [7, 7, 7, 7])
    num_sampled, mapping = ints(3, 2, 0, -7), ints(2, 0, 1, -7)
    counts = np.arange(24, dtype=np.int32).reshape(3, 8)
    args = {"counts": counts, "sampled": sampled, "num_sampled": num_sampled, "idx_mapping": mapping, "num_requests": live(3)}
    expected = counts.copy()
    expected[2, 3] += 2
    expected[2, 1] += 1
    expected[0, 2] += 1  # 9 is outside the vocabulary of 8
    launch.check(count_tokens, args, {"counts": expected})
    inside = np.where(sampled == 9, 2, sampled)
    args["sampled"] = inside
    launch.check(count_tokens, args, {"counts": oracle.count_tokens(counts, inside[:3], num_sampled[:3], mapping[:3])})


# --- n-gram ------------------------------------------------------------------------------------------------------------------


def check_ngram(launch: Launch, histories: list[list[int]], k: int, min_n: int, max_n: int, idle: set[int], done: set[int]) -> None:
    """Rows run over the slots in reverse; rows in `idle` sampled nothing, rows in `done` are finished. Slot N-1 is in no row."""
    rows = len(histories)
    length = max(map(len, histories)) + 3
    history = np.full((rows + 1, length), histories[0][-1] if histories[0] else 5, np.int32)  # a likely match behind the end
    for slot, tokens in enumerate(histories):
        history[slot, : len(tokens)] = tokens
    total_len = ints(*map(len, histories), -7)
    mapping = poisoned(ints(*reversed(range(rows)), 0), rows)
    num_sampled = poisoned(ints(*(0 if row in idle else 1 + row for row in range(rows)), 1), rows)
    finished = ints(*(int(rows - 1 - slot in done) for slot in range(rows)), 0)
    args = {
        "draft_tokens": out(rows + 1, k),
        "num_draft": out(rows + 1),
        "history": history,
        "total_len": total_len,
        "finished": finished,
        "idx_mapping": mapping,
        "num_sampled": num_sampled,
        "min_n": min_n,
        "max_n": max_n,
        "num_requests": live(rows),
    }
    drafts, num_draft = oracle.ngram_propose(
        args["draft_tokens"], args["num_draft"], history, total_len, finished, mapping[:rows], num_sampled, min_n, max_n
    )
    launch.check(ngram_propose, args, {"draft_tokens": drafts, "num_draft": num_draft})


@settings(quick, max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sets(st.integers(0, 3), max_size=1),
    st.sets(st.integers(0, 3), max_size=1),
    launch_drawn,
)
def test_ngram_is_its_oracle(
    histories: list[list[int]], k: int, min_n: int, more: int, idle: set[int], done: set[int], launch: Launch
) -> None:
    check_ngram(launch, histories, k, min_n, min_n + more, idle, done)


@launches((1, 1), (1, 3), (2, 32), (3, 2), (1, 64))
def test_ngram_at_every_launch(launch: Launch) -> None:
    """Several equal matches, so that the pick between threads matters; a repeated token; nothing to find; a lone token; none."""
    histories = [[1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], [4] * 9, [1, 2, 3, 4], [6], [], [1, 2, 1, 2, 1, 2]]
    check_ngram(launch, histories, k=4, min_n=1, max_n=3, idle=set(), done=set())
    check_ngram(launch, histories, k=4, min_n=2, max_n=4, idle={1}, done={0})


@every_launch
def test_ngram_clears_the_drafts_of_rows_that_propose_nothing(launch: Launch) -> None:
    check_ngram(launch, [[4] * 6, [4] * 6, [4] * 6], k=2, min_n=1, max_n=2, idle={0}, done={1})


# --- slots -------------------------------------------------------------------------------------------------------------------

ADMITTED = sorted(admit.writes)


def poisoned_state() -> dict[str, Ints]:
    widths = {"draft_tokens": 3, "stop_ids": 2, "history": 9}
    return {name: out(4, widths[name]) if name in widths else out(4) for name in ADMITTED}


@every_launch
@pytest.mark.parametrize(("num_computed", "last_sampled"), [(0, 0), (3, 43), (5, 45), (6, 0)])
def test_admit_rewrites_every_field_of_its_slot_and_no_other(launch: Launch, num_computed: int, last_sampled: int) -> None:
    record = ints(2, 5, num_computed, 9, 7, -7, -7, -7, 11, -1)
    tokens = poisoned(ints(41, 42, 43, 44, 45, 0, 0, 0, 0), 5)
    state = poisoned_state()
    expected = oracle.admit(state, record, tokens)
    assert expected["last_sampled"][2] == last_sampled
    assert expected["history"][2].tolist() == [41, 42, 43, 44, 45, -1, -1, -1, -1]
    for name in ADMITTED:
        assert not (expected[name][2] == -7).any(), f"{name} keeps poison of its previous owner"
        assert (expected[name][[0, 1, 3]] == -7).all()
    launch.check(admit, {**state, "record": record, "tokens": tokens}, expected)


@every_launch
@pytest.mark.parametrize("slot", [-1, 4])
def test_admit_to_no_slot_writes_nothing(launch: Launch, slot: int) -> None:
    state = poisoned_state()
    record = ints(slot, 3, 0, 9, 0, 0, 0, 0, 1, 2)
    launch.check(admit, {**state, "record": record, "tokens": ints(1, 2, 3)}, {})


@every_launch
def test_admit_cuts_a_prompt_that_its_history_cannot_hold(launch: Launch) -> None:
    state = poisoned_state()
    state["tokens"] = np.arange(20, dtype=np.int32)
    state["record"] = ints(1, 20, 0, 9, 0, 0, 0, 0, -1, -1)
    assert len(state["record"]) == RECORD_FIELDS + 2
    launch.run(admit, *(state[name] for name in admit.params))
    assert state["history"].tolist() == [[-7] * 9, list(range(9)), [-7] * 9, [-7] * 9]
    assert state["total_len"].tolist() == [-7, 9, -7, -7]


@every_launch
def test_w1_staged_write(launch: Launch) -> None:
    """Vector W1: rows [2, 0, 2], starts [1, 3, 4], data [10, 11], [20], [30, 31]."""
    writes = ints([2, 1, 10], [2, 2, 11], [0, 3, 20], [2, 4, 30], [2, 5, 31])
    expected = np.zeros((3, 6), np.int32)
    expected[2] = [0, 10, 11, 0, 30, 31]
    expected[0, 3] = 20
    args = {"target": np.zeros((3, 6), np.int32), "writes": writes, "num_writes": live(5)}
    launch.check(staged_write, args, {"target": expected})


@quick
@given(
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 4), st.integers(0, 99)), max_size=12),
    st.integers(0, 2),
    launch_drawn,
)
def test_staged_writes_keep_their_order_on_a_cell(triples: list[tuple[int, int, int]], pads: int, launch: Launch) -> None:
    writes = np.array([*triples, *[(0, 0, 777)] * pads], np.int32).reshape(-1, 3)
    args = {"target": out(3, 4), "writes": writes, "num_writes": live(len(triples))}
    launch.check(staged_write, args, {"target": oracle.staged_write(args["target"], writes[: len(triples)])})


@every_launch
def test_the_last_of_many_staged_writes_to_a_cell_wins(launch: Launch) -> None:
    """More triples on one cell than threads: with a thread a triple, an early one would land last."""
    writes = ints(*([1, 2, value] for value in range(65)))
    expected = out(3, 4)
    expected[1, 2] = 64
    launch.check(staged_write, {"target": out(3, 4), "writes": writes, "num_writes": live(65)}, {"target": expected})


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
