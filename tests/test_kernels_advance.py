"""What a step leaves in its slots against its oracle: lengths, history, stops, counts of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kernels import oracle_step as oracle
from kernels.advance import advance
from kernels.argmax import NO_TOKEN
from kernels.penalties import count_tokens
from tests.kernel_cases import Launch, ints, live
from tests.step_cases import Ints, Step, all_kinds, steps
from tests.step_launches import (
    check_advance,
    every_launch,
    launch_drawn,
    quick,
)


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
        ({"stop_ids": ints([-1, -1], [21, -1])}, 1, 1),  # the first token
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
def test_advance_of_no_token_leaves_an_id_of_the_vocabulary(launch: Launch) -> None:
    """What was emitted keeps the mark for the outcome. Id 0 is no stop here, although it is one elsewhere."""
    after = advance_one(launch, [21, NO_TOKEN], stop_ids=ints([-1, -1], [0, -1]))
    assert after["sampled"].tolist() == [[21, NO_TOKEN, -1, -1]]
    assert (after["num_sampled"][0], after["last_sampled"][1], after["finished"][1]) == (2, 0, 0)
    assert after["history"][1].tolist() == [-7] * 10 + [21, 0] + [-7] * 4


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
