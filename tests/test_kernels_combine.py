"""The combine against its oracle, each guard by a case that needs it, and what is refused before it is staged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.combine import check_arguments, combine
from tests.kernel_cases import Launch, ints, live
from tests.step_cases import Ints, Step, all_kinds, steps
from tests.step_launches import (
    every_launch,
    launch_drawn,
    out,
    quick,
)

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
