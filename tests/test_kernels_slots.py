"""What a slot holds against its oracles: n-gram drafts, admission, staged writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_step as oracle
from kernels.ngram import ngram_propose
from kernels.slots import RECORD_FIELDS, admit, staged_write
from tests.kernel_cases import Launch, ints, launches, live, poisoned
from tests.step_launches import (
    ADMITTED,
    every_launch,
    launch_drawn,
    out,
    poisoned_state,
    quick,
)


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
