"""Kernels of logits processing against their NumPy oracles, under njit and in the simulator, over grids and block sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_process as oracle
from kernels.penalties import IN_PROMPT, begin_counts
from kernels.process_adjust import adjust_logits, forbid_tokens
from tests.kernel_cases import Launch, floats, ints, launches, live, poisoned, untouched

STRIPED = launches((1, 1), ((2, 2), 3), ((5, 3), 8))
ROWS = launches((1, 1), (2, 3), (7, 8))
ONE_BLOCK = launches((1, 1), (1, 3), (1, 32))

VOCAB = 70
SLOTS = 5
FLAG = int(IN_PROMPT)


def bits(*ids: int) -> np.ndarray:
    """int32 [W]: the words of a set of ids."""
    flags = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


# Logits rows of a step: slot 3 verifies three drafts (4 rows), slot 0 decodes, slot 4 verifies a draft and a -1, slot 9 does not
# exist; two pads. Input ids stand elsewhere than logits rows, as behind a prefill.
SLOT_OF_ROW = ints(3, 3, 3, 3, 0, 4, 4, 4, 9, -1, -1)
LOCAL = ints(0, 1, 2, 3, 0, 0, 1, 2, 0, 0, 0)
INPUT_IDS = ints(60, 61, 62, 50, 7, 7, 9, 51, 52, 7, -1, 5, -1, -1)
INDICES = ints(3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0)
BLOCK = {"slot_of_row": SLOT_OF_ROW, "local_position": LOCAL, "input_ids": INPUT_IDS, "logits_indices": INDICES}


def counts_case() -> np.ndarray:
    counts = np.zeros((SLOTS, VOCAB), np.int32)
    counts[3, [1, 7]] = FLAG, 2
    counts[4, [5, 52]] = FLAG + 3, 1
    counts[0] = 9  # of a slot without penalties: read by nobody
    return counts


def adjust_case(rows: int = 9) -> dict[str, Any]:
    bias_ids = np.full((SLOTS, 4), -1, np.int32)
    bias_values = np.full((SLOTS, 4), np.nan, np.float32)
    bias_ids[3, :2], bias_values[3, :2] = (7, 69), (1.25, -100)
    bias_ids[0, :2], bias_values[0, :2] = (31, 5), (3, 77)  # the second is of an earlier owner
    allowed = np.zeros((SLOTS, 3), np.int32)
    allowed[0] = bits(0, 31, 32, 63, 64, 69)
    logits = 3 * floats(1, len(SLOT_OF_ROW), VOCAB + 2)
    logits[:, VOCAB:] = 99  # padding of the head
    logits[4, 31:34] = np.nan, np.inf, -np.inf
    return {
        "processed": untouched(len(SLOT_OF_ROW), VOCAB),
        "best": untouched(4, len(SLOT_OF_ROW)),
        "logits": poisoned(logits, rows),
        "temperature": np.array([0, 1, 1, 0.7, 2], np.float32),
        "repetition": np.array([1, 1, 1, 1.5, 1], np.float32),
        "presence": np.array([0, 0, 0, 0.25, -0.5], np.float32),
        "frequency": np.array([0, 0, 0, 0.5, 1.5], np.float32),
        "counts": counts_case(),
        "num_bias": ints(1, 0, 0, 2, 0),
        "bias_ids": bias_ids,
        "bias_values": bias_values,
        "restricted": ints(1, 0, 0, 0, 0),
        "allowed": allowed,
        **BLOCK,
        "num_rows": live(rows),
    }


@STRIPED
@pytest.mark.parametrize("rows", [0, 1, 6, 9])
def test_adjust_logits(launch: Launch, rows: int) -> None:
    args = adjust_case(rows)
    processed, best = oracle.adjust_logits(**args)
    launch.check(adjust_logits, args, {"processed": processed, "best": best})


@STRIPED
@pytest.mark.parametrize("vocab", [1, 2, 31, 129])
@pytest.mark.parametrize("stripes", [1, 3])
def test_adjust_logits_of_rows_that_ask_for_little(launch: Launch, vocab: int, stripes: int) -> None:
    """Temperature alone, over widths that leave any remainder of the columns that a thread loads at once."""
    args = adjust_case() | {
        "processed": untouched(11, vocab),
        "best": untouched(stripes, 11),
        "logits": 3 * floats(7, 11, vocab) - 5,
        "counts": np.zeros((SLOTS, vocab), np.int32),
        "repetition": np.ones(SLOTS, np.float32),
        "presence": np.zeros(SLOTS, np.float32),
        "frequency": np.zeros(SLOTS, np.float32),
        "num_bias": np.zeros(SLOTS, np.int32),
        "restricted": np.zeros(SLOTS, np.int32),
    }
    processed, best = oracle.adjust_logits(**args)
    launch.check(adjust_logits, args, {"processed": processed, "best": best})


@STRIPED
def test_the_accepted_prefix_counts_within_the_block(launch: Launch) -> None:
    """VECTORS 6.2 L1 and 6.6 V7: drafts 1, 1, 1; frequency 1.5 moves row 1 below 99 at once, 0.7 only row 2."""
    logits = np.full((8, VOCAB), -100, np.float32)
    logits[:, 1], logits[:, 15] = 100, 99
    args = adjust_case() | {
        "logits": logits,
        "processed": untouched(8, VOCAB),
        "best": untouched(1, 8),
        "temperature": np.zeros(2, np.float32),
        "repetition": np.ones(2, np.float32),
        "presence": np.zeros(2, np.float32),
        "frequency": np.array([1.5, 0.7], np.float32),
        "counts": np.zeros((2, VOCAB), np.int32),
        "num_bias": np.zeros(2, np.int32),
        "bias_ids": np.full((2, 1), -1, np.int32),
        "bias_values": np.zeros((2, 1), np.float32),
        "restricted": np.zeros(2, np.int32),
        "allowed": np.zeros((2, 3), np.int32),
        "slot_of_row": ints(0, 0, 0, 0, 1, 1, 1, 1),
        "local_position": ints(0, 1, 2, 3, 0, 1, 2, 3),
        "input_ids": ints(2, 1, 1, 1, 4, 1, 1, 1),
        "logits_indices": np.arange(8, dtype=np.int32),
        "num_rows": live(8),
    }
    expected, best = oracle.adjust_logits(**args)
    launch.check(adjust_logits, args, {"processed": expected, "best": best})
    assert expected.argmax(1).tolist() == [1, 15, 15, 15, 1, 1, 15, 15]


def test_penalties_of_the_vectors() -> None:
    """VECTORS 6.6 V7: prompt 1, 2, 3, 2, output 7, 7; the prompt counts for repetition alone."""
    counts = oracle.begin_counts(np.full((1, 9), 5, np.int32), ints(0, 6, 0, 9, 0, 4), ints(1, 2, 3, 2, 7, 7))
    logits = np.array([2, 2, 2, -2, 2, 2, 2, 2, -2], np.float32)
    expected = np.array([2, 2 / 1.5, 2 / 1.5, -3, 2, 2, 2, 2 / 1.5 - 0.8, -2], np.float32)
    np.testing.assert_allclose(oracle.penalised(logits, counts[0], 1.5, 0.2, 0.3), expected, rtol=1e-6)


@ONE_BLOCK
@pytest.mark.parametrize("record", [(2, 4, 7), (0, 3, 3), (1, 0, 0), (-1, 2, 2), (SLOTS, 2, 2)], ids=str)
def test_begin_counts(launch: Launch, record: tuple[int, int, int]) -> None:
    args = {
        "counts": np.full((SLOTS, VOCAB), 77, np.int32),  # of the slot's last owner
        "record": ints(record[0], record[2], 0, 99, 0, record[1], -1, -1),
        "tokens": ints(3, 5, 3, 69, 5, 5, 4, -7, 1000),
    }
    launch.check(begin_counts, args, {"counts": oracle.begin_counts(**args)})


def forbid_case(rows: int = 9) -> dict[str, Any]:
    history = np.full((SLOTS, 12), -1, np.int32)
    history[3, :6] = 10, 11, 12, 7, 50, 7  # ends in 50, 7; drafts 7, 7, 9 follow
    history[4, :3] = 10, 11, 52
    history[0, :2] = 10, 51
    bad_starts = np.zeros((SLOTS, 5), np.int32)
    bad_tokens = np.full((SLOTS, 12), -7, np.int32)
    # [12]; [50, 7, 20]: behind the committed tokens; [7, 7, 21]: across the border and inside the block; [7, 9, 7]
    bad_tokens[3, :10] = 12, 50, 7, 20, 7, 7, 21, 7, 9, 7
    bad_starts[3] = 0, 1, 4, 7, 10
    bad_tokens[4, :6] = 52, 7, 40, 1, 2, 3
    bad_starts[4] = 0, 3, 6, 6, 6  # the second word is of an earlier owner
    # Longer than what there is.
    bad_tokens[0, :4] = 9, 10, 51, 30
    bad_starts[0] = 0, 4, 4, 4, 4
    return {
        "processed": poisoned(floats(2, len(SLOT_OF_ROW), VOCAB), rows),
        "best": untouched(3, len(SLOT_OF_ROW)),
        "history": history,
        "total_len": ints(2, 0, 0, 6, 3),
        "min_total_len": ints(2, 0, 0, 8, 4),
        "stop_ids": np.array([[2, -1], [2, -1], [-1, -1], [2, 33], [1, 1000]], np.int32),
        "num_bad": ints(1, 0, 0, 4, 1),
        "bad_starts": bad_starts,
        "bad_tokens": bad_tokens,
        **BLOCK,
        "num_rows": live(rows),
    }


@ROWS
@pytest.mark.parametrize("rows", [0, 5, 9])
def test_forbid_tokens(launch: Launch, rows: int) -> None:
    args = forbid_case(rows)
    processed, best = oracle.forbid_tokens(**args)
    launch.check(forbid_tokens, args, {"processed": processed, "best": best})


def test_forbidden_tokens_by_hand() -> None:
    """What the case says, without the oracle's arithmetic: min_tokens ends inside a block, words match across its border."""
    masked = [set(np.flatnonzero(row == -np.inf)) for row in oracle.forbid_tokens(**forbid_case())[0]]
    assert masked[:4] == [{12, 20, 2, 33}, {12, 21, 2, 33}, {12, 21}, {12, 7}]
    assert masked[4:] == [set(), {1}, {40}, set(), set(), set(), set()]


# ---- vectors of peers ------------------------------------------------------------------------------------------------

TOP, SECOND = 100, 99


@pytest.mark.parametrize(
    ("case", "drafts", "target", "expected"),
    [
        (
            "L2 bad words",
            [[1, 2, 3], [1, 15, 3], [1, 2, 3]],
            [[1, 2, 3, 4], [1, 15, 3, 4], [1, 2, 3, 4]],
            [[1, 15, -1, -1], [1, 15, 3, 4], [1, 15, -1, -1]],
        ),
        (
            "L3 allowed ids",
            [[1, 2, 10], [10, 5, 3], [7, 10, 12]],
            [[1, 2, 10, 5], [10, 5, 10, 5], [7, 10, 12, 5]],
            [[15, -1, -1, -1], [10, 5, 10, -1], [7, 10, 12, 15]],
        ),
    ],
    ids=["L2", "L3"],
)
@ROWS
def test_masks_within_verified_blocks(
    launch: Launch, case: str, drafts: list[list[int]], target: list[list[int]], expected: list[list[int]]
) -> None:
    """VECTORS 6.2: three requests with three drafts each; 15 is second at every place. L2 forbids token 2 to requests 0 and 2, L3
    forbids 0..4 to request 0 and 2..6 to request 2. There the bonus token comes from elsewhere; here it obeys the request, so that
    L3 ends in 15 and not in the forbidden 5."""
    logits = np.full((12, VOCAB), -TOP, np.float32)
    logits[:, 15] = SECOND
    logits[np.arange(12), np.array(target).reshape(-1)] = TOP
    allowed, restricted = np.zeros((3, 3), np.int32), np.zeros(3, np.int32)
    if case.startswith("L3"):
        allowed[0], allowed[2] = bits(*range(5, VOCAB)), bits(0, 1, *range(7, VOCAB))
        restricted[[0, 2]] = 1
    rows = {
        "slot_of_row": np.repeat(np.arange(3, dtype=np.int32), 4),
        "local_position": np.tile(np.arange(4, dtype=np.int32), 3),
        "input_ids": np.array([[60, *block] for block in drafts], np.int32).reshape(-1),
        "logits_indices": np.arange(12, dtype=np.int32),
        "num_rows": live(12),
    }
    args: dict[str, Any] = {
        "processed": untouched(12, VOCAB),
        "best": untouched(1, 12),
        "logits": logits,
        "temperature": np.zeros(3, np.float32),
        "repetition": np.ones(3, np.float32),
        "presence": np.zeros(3, np.float32),
        "frequency": np.zeros(3, np.float32),
        "counts": np.zeros((3, VOCAB), np.int32),
        "num_bias": np.zeros(3, np.int32),
        "bias_ids": np.zeros((3, 1), np.int32),
        "bias_values": np.zeros((3, 1), np.float32),
        "restricted": restricted,
        "allowed": allowed,
        "history": np.full((3, 8), 60, np.int32),
        "total_len": np.full(3, 4, np.int32),
        "min_total_len": np.zeros(3, np.int32),
        "stop_ids": np.full((3, 1), -1, np.int32),
        "num_bad": ints(1, 0, 1) if case.startswith("L2") else np.zeros(3, np.int32),
        "bad_starts": np.tile(ints(0, 1), (3, 1)),
        "bad_tokens": np.full((3, 1), 2, np.int32),
        **rows,
    }
    for kernel in (adjust_logits, forbid_tokens):
        launch.run(kernel, *(args[name] for name in kernel.params))
    chosen = args["processed"].argmax(1).reshape(3, 4)
    for request in range(3):
        agreeing = [bool(chosen[request, i] == drafts[request][i]) for i in range(3)]
        kept = agreeing.index(False) if False in agreeing else 3
        assert [*chosen[request, : kept + 1], *[-1] * (3 - kept)] == expected[request]
