"""Verification of drafts with a distribution against its oracle, kernel by kernel, on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels import oracle_sampling as oracle
from kernels.argmax import NO_TOKEN
from kernels.random import ROLE_RESIDUAL, ROLE_TOKEN, TILE
from kernels.reject import BLOCK, STANDARD, accept_drafts
from kernels.reject_residual import emit_drawn, residual_stripes
from kernels.reject_rows import sum_rows, sum_stripes
from kernels.sample import NO_COLUMN
from tests.kernel_cases import Launch, launches, untouched
from tests.sampling_cases import DRAFTS, SLOTS, Batch, batch

Array = npt.NDArray[Any]
over_columns = launches((2, 32), ((3, 2), 32))
"""Whole warps, as these kernels want on a GPU; a single thread of the simulator would take a minute."""


def sums_of(case: Batch) -> dict[str, Array]:
    args = case.take("seed", "token_slot", "positions", "logits_indices", "local_position")
    for name in ("logits_indices", "local_position"):
        args[name] = args[name][: case.num_rows]
    log_sum, row_argmax, uniforms = oracle.sum_rows(processed=case.kept(), **args)
    return {
        "log_sum": log_sum.astype(np.float32),
        "row_argmax": row_argmax,
        "uniforms": uniforms.astype(np.float32),
    }


@over_columns
def test_sums_of_rows(launch: Launch) -> None:
    case, width = batch(5, 300), 128
    case.args["processed"][1] = -np.inf
    case.args["processed"][2] = np.nan
    case.args["processed"][3] = -np.inf
    case.args["processed"][3, 200] = 3.0
    rows, stripes = case.num_rows, 4
    expected = oracle.sum_stripes(stripes, width, case.kept())
    names = ("stripe_max", "stripe_sum", "stripe_column")
    kinds = (np.float32, np.float32, np.int32)
    blank = {name: untouched(stripes, rows + 1, dtype=kind) for name, kind in zip(names, kinds, strict=True)}
    full = {name: array.copy() for name, array in blank.items()}
    for name, values in zip(names, expected, strict=True):
        full[name][:, :rows] = values
    launch.check(sum_stripes, {**blank, "stripe_width": width, **case.take("processed", "threshold", "num_rows")}, full)
    sums = sums_of(case)
    out = {name: untouched(rows + 1, dtype=values.dtype) for name, values in sums.items()}
    held = {name: array.copy() for name, array in out.items()}
    for name, values in sums.items():
        held[name][:rows] = values
    args = {**out, **full, **case.take("seed", "token_slot", "positions", "logits_indices", "local_position", "num_rows")}
    launch.check(sum_rows, args, held)


def check_verification(launch: Launch, case: Batch, verification: int, tiles_per_stripe: int = 1) -> Array:
    """accept_drafts, residual_stripes and emit_drawn, each on the oracle's results of the one before; ids emitted."""
    rows, requests, width = case.num_rows, case.num_requests, 1 + max(DRAFTS)
    sums = sums_of(case)
    live = {"processed": case.kept(), "logits_indices": case.args["logits_indices"][:rows]}
    mapping, cu = case.args["idx_mapping"][:requests], case.args["cu_num_logits"][: requests + 1]
    drafter = case.take("draft_ids", "draft_probs", "temperature")
    decided = oracle.accept_drafts(
        uniforms=sums["uniforms"],
        input_ids=case.args["input_ids"],
        cu_num_logits=cu,
        idx_mapping=mapping,
        verification=verification,
        **live,
        **drafter,
    )
    num_accepted, scale, residual, _ = decided
    names = ("num_accepted", "scale", "residual", "num_drafts")
    kinds = (np.int32, np.float32, np.int32, np.int32)
    blank = {name: untouched(requests + 1, dtype=kind) for name, kind in zip(names, kinds, strict=True)}
    full = {name: array.copy() for name, array in blank.items()}
    for name, values in zip(names, decided, strict=True):
        full[name][:requests] = values
    padded = {name: np.append(values, values.dtype.type(-7)) for name, values in sums.items()}
    common = case.take("processed", "threshold", "logits_indices", "cu_num_logits", "idx_mapping", "num_requests")
    args = {
        **blank,
        **{name: padded[name] for name in ("log_sum", "row_argmax", "uniforms")},
        **common,
        **drafter,
        **case.take("input_ids"),
        "verification": verification,
    }
    launch.check(accept_drafts, args, full, rtol=1e-4)

    vocab_size = case.args["processed"].shape[1]
    stripes = -(-vocab_size // (TILE * tiles_per_stripe))
    score, column = np.full((stripes, requests), -np.inf), np.full((stripes, requests), oracle.NO_COLUMN, np.int32)
    tokens = np.zeros(requests, np.int32)
    for request, slot in enumerate(mapping):
        row = cu[request] + max(num_accepted[request], 0)
        at = live["logits_indices"][row]
        values = live["processed"][row].astype(np.float64)
        if residual[request]:
            i = num_accepted[request]
            q = oracle.dense(drafter["draft_ids"][slot, i], drafter["draft_probs"][slot, i], vocab_size)
            values = oracle.residual_logits(live["processed"][row], q, scale[request])
        if drafter["temperature"][slot] > 0:
            role = ROLE_RESIDUAL if residual[request] else ROLE_TOKEN
            seed = tuple(case.args["seed"][slot])
            values = values + oracle.column_gumbels(seed, int(case.args["positions"][at]) + 1, role, vocab_size)
        best = oracle.race_stripes(stripes, tiles_per_stripe, values[None])
        score[:, request], column[:, request] = best[0][:, 0], best[1][:, 0]
        tokens[request] = values.argmax() if values.max() > -np.inf else sums["row_argmax"][row]
    blank_race = {"best_score": untouched(stripes, rows + 1), "best_column": untouched(stripes, rows + 1, dtype=np.int32)}
    full_race = {name: array.copy() for name, array in blank_race.items()}
    full_race["best_score"][:, :requests], full_race["best_column"][:, :requests] = score, column
    args = {
        **blank_race,
        **{name: full[name] for name in ("num_accepted", "scale", "residual")},
        "log_sum": padded["log_sum"],
        **common,
        **drafter,
        **case.take("seed", "positions"),
        "tiles_per_stripe": tiles_per_stripe,
    }
    launch.check(residual_stripes, args, full_race, rtol=1e-4, atol=1e-4)

    where = (sums["row_argmax"], case.args["input_ids"], live["logits_indices"], cu)
    emitted = oracle.emit_drawn(width, num_accepted, tokens, *where)
    blank_out = {"sampled": untouched(requests + 1, width, dtype=np.int32), "num_sampled": untouched(requests + 1, dtype=np.int32)}
    full_out = {name: array.copy() for name, array in blank_out.items()}
    full_out["sampled"][:requests], full_out["num_sampled"][:requests] = emitted
    args = {
        **blank_out,
        **full_race,
        "num_accepted": full["num_accepted"],
        "row_argmax": padded["row_argmax"],
        **case.take("input_ids", "logits_indices", "cu_num_logits", "history", "total_len", "idx_mapping", "num_requests"),
    }
    launch.check(emit_drawn, args, full_out)
    return num_accepted


@over_columns
@pytest.mark.parametrize("verification", [STANDARD, BLOCK])
def test_verification(launch: Launch, verification: int) -> None:
    seeds = range(1 if launch.executor == "simulator" else 6)
    seen = {tuple(check_verification(launch, batch(seed, 40), verification)) for seed in seeds}
    assert len(seen) > len(seeds) // 2


@pytest.mark.parametrize("verification", [STANDARD, BLOCK])
def test_verification_over_many_batches(verification: int) -> None:
    """Every count of kept drafts occurs, in greedy requests and in sampled ones."""
    kept: dict[int, set[int]] = {}
    for seed in range(150):
        for request, accepted in enumerate(check_verification(Launch("cpu"), batch(seed, 24), verification)):
            kept.setdefault(request, set()).add(int(accepted))
    assert kept == {0: {0, 1, 2, 3}, 1: {0}, 2: {0, 1, 2}, 3: {0, 1, 2, 3}}


@pytest.mark.parametrize("vocab_size", [100, 8193, 10_000, 151_936])
@pytest.mark.parametrize("verification", [STANDARD, BLOCK])
def test_verification_at_the_edges_of_a_vocabulary(vocab_size: int, verification: int) -> None:
    """Q4: nor does a tile of the residual; the last column has a chance to win."""
    for seed in range(3):
        case = batch(seed, vocab_size)
        case.args["processed"][: case.num_rows, vocab_size - 1] = 30.0
        check_verification(Launch("cpu"), case, verification, tiles_per_stripe=8)


@over_columns
@pytest.mark.parametrize(
    ("nothing", "columns", "emitted"),
    [
        ([], [7, 8, 9], [[7, -1, -1], [23, -1, -1], [5, 9, -1]]),
        ([0, 2, 4], [NO_COLUMN] * 3, [[NO_TOKEN, -1, -1], [23, -1, -1], [5, NO_TOKEN, -1]]),
        ([1, 3], [7, NO_COLUMN, 9], [[7, -1, -1], [23, -1, -1], [NO_TOKEN, 9, -1]]),  # row 1 is behind a draft that was not kept
    ],
    ids=["logits", "nothing-to-draw", "nothing-kept"],
)
def test_a_token_that_is_known_already_is_emitted(
    launch: Launch, nothing: list[int], columns: list[int], emitted: list[list[int]]
) -> None:
    """Request 1 (slot 0) has no drafts and comes back with 23 behind its prefill; request 0 knows nothing; request 2 kept a draft.
    Rows of nothing say so in what is emitted from them, and nowhere else."""
    history = np.full((4, 6), -1, np.int32)
    history[0, 4] = 23
    row_argmax = np.zeros(5, np.int32)
    row_argmax[nothing] = NO_TOKEN
    args = {
        "sampled": untouched(3, 3, dtype=np.int32),
        "num_sampled": untouched(3, dtype=np.int32),
        "num_accepted": np.array([0, 0, 1], np.int32),
        "best_score": np.where(np.array([columns]) == NO_COLUMN, -np.inf, 0).astype(np.float32),
        "best_column": np.array([columns], np.int32),
        "row_argmax": row_argmax,
        "input_ids": np.array([1, 2, 3, 4, 5], np.int32),
        "logits_indices": np.arange(5, dtype=np.int32),
        "cu_num_logits": np.array([0, 2, 3, 5], np.int32),
        "history": history,
        "total_len": np.array([4, 2, 6, 0], np.int32),
        "idx_mapping": np.array([1, 0, 2], np.int32),
        "num_requests": np.array([3], np.int32),
    }
    launch.check(emit_drawn, args, {"sampled": np.array(emitted, np.int32), "num_sampled": np.array([1, 1, 2], np.int32)})


@pytest.mark.parametrize("verification", [STANDARD, BLOCK])
def test_rows_of_nothing_keep_no_draft_and_emit_no_token(verification: int) -> None:
    """M8: all NaN, all -inf, in rows of drafts and of the bonus, V = 20,000. The end of the step makes an id of it."""
    for value in (np.nan, -np.inf):
        case = batch(6, 20_000)
        case.args["processed"][: case.num_rows] = value
        greedy = case.args["cu_num_logits"][2]
        case.args["input_ids"][case.args["logits_indices"][greedy + 1]] = -1  # agrees with nothing, least of all with nothing
        assert list(check_verification(Launch("cpu"), case, verification)) == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_residual_where_the_leading_tiles_are_rejected(seed: int) -> None:
    """The draft is sure to be rejected, and so are the other candidates, each far ahead of its tile."""
    case = batch(seed, 4 * TILE)
    slot, row = case.args["idx_mapping"][0], case.args["cu_num_logits"][0]
    ids = case.args["draft_ids"][slot, 0]
    ids[:] = 5, TILE + 7, 3 * TILE + 9, -1
    case.args["draft_probs"][slot, 0, :3] = 1 / 3
    case.args["processed"][row, ids[:3]] = -1.0, 11.0, 11.0
    case.args["input_ids"][case.args["logits_indices"][row + 1]] = ids[0]
    assert check_verification(Launch("cpu"), case, STANDARD, tiles_per_stripe=4)[0] == 0


def test_the_batch_of_these_tests_is_what_it_says() -> None:
    case = batch(0, 40)
    assert case.args["temperature"].shape == (SLOTS,)
    assert [bool(case.args["temperature"][slot] > 0) for slot in case.args["idx_mapping"][:4]] == [True, True, False, True]
