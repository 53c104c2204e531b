"""The walk over the drafts of a greedy step against its oracle, and rows that emit nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.accept import accept_greedy, sampled_rejected
from tests.kernel_cases import Launch, ints, live
from tests.step_cases import Step, all_kinds, steps
from tests.step_launches import (
    every_launch,
    fed_step,
    launch_drawn,
    out,
    quick,
)


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
def test_what_is_emitted_lies_where_its_logits_rows_lie(launch: Launch) -> None:
    """M3: token i of a request came from its i-th row of logits, so rows [10, 11] and [20] of `sampled` are 10, 11, 0, 20, 0, 0
    beside the six rows of logits; behind them `sampled` has -1."""
    cu, argmax = ints(0, 3, 6), ints(10, 11, 12, 20, 21, 22)
    args = {
        "sampled": out(2, 3),
        "num_sampled": out(2),
        "num_drafts": out(2),
        "row_argmax": argmax,
        "input_ids": ints(9, 10, 99, 9, 99, 21),
        "logits_indices": np.arange(6, dtype=np.int32),
        "cu_num_logits": cu,
        "num_requests": live(2),
    }
    sampled, num_sampled = ints([10, 11, -1], [20, -1, -1]), ints(2, 1)
    launch.check(accept_greedy, args, {"sampled": sampled, "num_sampled": num_sampled, "num_drafts": ints(2, 2)})
    beside = np.zeros(6, np.int32)
    for row, emitted in enumerate(num_sampled):
        beside[cu[row] : cu[row] + emitted] = sampled[row, :emitted]
    assert beside.tolist() == [10, 11, 0, 20, 0, 0]
    assert set(np.flatnonzero(beside == argmax)) == {0, 1, 3}


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
