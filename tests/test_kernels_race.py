"""The race over the vocabulary that draws a token, against its oracle, on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels import oracle_sampling as oracle
from kernels.argmax import NO_TOKEN
from kernels.random import TILE
from kernels.sample import pick_rows, race_stripes
from tests.kernel_cases import Launch, launches, untouched
from tests.sampling_cases import Batch, batch

Array = npt.NDArray[Any]
over_columns = launches((2, 32), ((3, 2), 32))
"""Whole warps, as these kernels want on a GPU; a single thread of the simulator would take a minute."""
VOCABULARY = 1100
"""Two tiles, the second of them short: the simulator looks at every column one by one."""


def scores_of(case: Batch) -> npt.NDArray[np.float64]:
    args = case.take("temperature", "seed", "token_slot", "positions", "logits_indices")
    args["logits_indices"] = args["logits_indices"][: case.num_rows]
    return oracle.scores(processed=case.kept(), **args)


def check_race(launch: Launch, case: Batch, tiles_per_stripe: int) -> Array:
    vocab_size = case.args["processed"].shape[1]
    stripes = -(-vocab_size // (TILE * tiles_per_stripe)) + 1  # one that has no column
    rows = case.num_rows
    expected_score, expected_column = oracle.race_stripes(stripes, tiles_per_stripe, scores_of(case))
    score, column = untouched(stripes, rows + 1), untouched(stripes, rows + 1, dtype=np.int32)
    score[:, :rows], column[:, :rows] = expected_score, expected_column
    args = {
        "best_score": untouched(stripes, rows + 1),
        "best_column": untouched(stripes, rows + 1, dtype=np.int32),
        "tiles_per_stripe": tiles_per_stripe,
        **case.take("processed", "threshold", "temperature", "seed", "token_slot", "positions", "logits_indices", "num_rows"),
    }
    launch.check(race_stripes, args, {"best_score": score, "best_column": column}, rtol=1e-5, atol=1e-5)
    picks = untouched(rows + 1, dtype=np.int32)
    args = {"picks": picks.copy(), "best_score": score, "best_column": column, **case.take("num_rows")}
    picks[:rows] = oracle.pick_rows(expected_score, expected_column)
    launch.check(pick_rows, args, {"picks": picks})
    return picks[:rows]


@over_columns
def test_race(launch: Launch) -> None:
    case = batch(0, VOCABULARY)
    processed = case.args["processed"]
    processed[1] = -np.inf
    processed[4] = np.nan  # the only row of request 1
    processed[5, :] = 0.25  # greedy: the lowest column of a tie, whatever the tiles
    case.args["threshold"][[0, 2, 3, 6, 7, 8]] = 4.0  # half of what would be drawn
    picks = check_race(launch, case, tiles_per_stripe=1)
    assert picks[[1, 4, 5]].tolist() == [NO_TOKEN, NO_TOKEN, 0]
    if launch.executor != "simulator":
        assert np.array_equal(check_race(launch, case, tiles_per_stripe=2), picks)


@pytest.mark.parametrize("vocab_size", [1, 3, 100, 8193, 10_000, 151_936])
def test_race_at_the_edges_of_a_vocabulary(vocab_size: int) -> None:
    """Q4: no tile reaches behind the last column."""
    case = batch(3, max(vocab_size, 8))
    case.args["processed"] = np.ascontiguousarray(case.args["processed"][:, :vocab_size])
    picks = check_race(Launch("cpu"), case, tiles_per_stripe=8)
    np.testing.assert_array_equal(picks == NO_TOKEN, ~(case.kept() > -np.inf).any(axis=1))
    assert picks.min() >= NO_TOKEN
    assert picks.max() < vocab_size


def test_one_column_alone_wins_wherever_it_is() -> None:
    for column in (0, 255, 256, TILE - 1, TILE, 2 * TILE + 5):
        case = batch(4, 2 * TILE + 6)
        case.args["processed"][:] = -np.inf
        case.args["processed"][:, column] = -1
        assert set(check_race(Launch("cpu"), case, tiles_per_stripe=2)) == {column}
