"""Random numbers, races over the vocabulary and stochastic verification against their oracles, on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels import oracle_sampling as oracle
from kernels.argmax import NO_TOKEN
from kernels.lang import cuda, kernel, u32
from kernels.random import (
    ROLE_ACCEPT,
    ROLE_DRAFT,
    ROLE_RESIDUAL,
    ROLE_TOKEN,
    TILE,
    column_gumbel,
    gumbel,
    gumbel_bound,
    open_uniform,
    philox,
    uniform,
    unsigned,
)
from kernels.reject import BLOCK, STANDARD, accept_drafts
from kernels.reject_residual import emit_drawn, residual_stripes
from kernels.reject_rows import sum_rows, sum_stripes
from kernels.sample import NO_COLUMN, pick_rows, race_stripes
from tests.kernel_cases import EXECUTORS, Launch, launches, untouched
from tests.sampling_cases import DRAFTS, SLOTS, Batch, batch

Array = npt.NDArray[Any]
every_launch = launches((1, 3), (2, 32), ((3, 2), 8))
over_columns = launches((2, 32), ((3, 2), 32))
"""Whole warps, as these kernels want on a GPU; a single thread of the simulator would take a minute."""
VOCABULARY = 1100
"""Two tiles, the second of them short: the simulator looks at every column one by one."""


# --- random numbers ----------------------------------------------------------------------------------------------------------


@kernel(writes=("out",))
def write_words(out, counters, keys):
    for i in range(cuda.grid(1), counters.shape[0], cuda.gridsize(1)):
        c, k = counters[i], keys[i]
        w0, w1, w2, w3 = philox(unsigned(c[0]), unsigned(c[1]), unsigned(c[2]), unsigned(c[3]), unsigned(k[0]), unsigned(k[1]))
        out[i, 0] = w0
        out[i, 1] = w1
        out[i, 2] = w2
        out[i, 3] = w3


@every_launch
def test_philox_gives_the_published_answers(launch: Launch) -> None:
    """kat_vectors of Random123 1.14 (philox4x32, 10 rounds)."""
    known = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    counters, keys, words = (np.array(column, np.uint32) for column in zip(*known, strict=True))
    out = np.zeros((3, 4), np.uint32)
    launch.run(write_words, out, counters.view(np.int32), keys.view(np.int32))
    np.testing.assert_array_equal(out, words)
    for i in range(3):
        key = int(keys[i, 0]), int(keys[i, 1])
        np.testing.assert_array_equal(oracle.philox(counters[i : i + 1].astype(np.uint64), key)[0], words[i])


@kernel(writes=("out",))
def write_uniforms(out, seeds, positions, role):
    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[i] = uniform(seeds[i, 0], seeds[i, 1], positions[i], role, i)


@every_launch
def test_uniforms_are_those_of_the_oracle(launch: Launch) -> None:
    seeds = np.array([[1, 2], [-1, -(2**31)], [0, 0]], np.int32)
    positions = np.array([0, 1, 2**31 - 1], np.int32)
    for role in (ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL):
        out = np.zeros(3, np.float32)
        launch.run(write_uniforms, out, seeds, positions, role)
        expected = [oracle.uniform(tuple(seeds[i]), int(positions[i]), role, i) for i in range(3)]
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_roles_positions_seeds_and_indices_share_no_number() -> None:
    """One bit of difference anywhere is another number: what is drawn for one purpose says nothing of another."""
    draws = {
        oracle.uniform((low, high), position, role, index)
        for low in (0, 1)
        for high in (0, 1)
        for position in (5, 6)
        for role in (ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL)
        for index in (0, 1)
    }
    assert len(draws) == 2 * 2 * 2 * 4 * 2
    assert len({ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL}) == 4


@kernel(writes=("uniforms", "gumbels", "bounds"))
def write_numbers(uniforms, gumbels, bounds, words):
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        high, low = unsigned(words[i, 0]), unsigned(words[i, 1])
        uniforms[i] = open_uniform(high, low)
        gumbels[i] = gumbel(high, low)
        bounds[i] = gumbel_bound(high)


@every_launch
def test_numbers_reach_into_both_tails_and_bounds_hold(launch: Launch) -> None:
    """Words from all scales: 24 random bits would end the upper tail at 17."""
    rng = np.random.default_rng(0)
    scales = [rng.integers(0, 2**bits, 40, dtype=np.uint64) for bits in range(1, 33)]
    edges = np.array([0, 1, 255, 256, 2**24 - 1, 2**24, 2**31, 2**32 - 1], np.uint64)
    high = np.concatenate([*scales, edges]).astype(np.uint32)
    words = np.stack([high, rng.permutation(high)], axis=1)
    words[0] = 0
    uniforms, gumbels, bounds = (np.zeros(len(high), np.float32) for _ in range(3))
    launch.run(write_numbers, uniforms, gumbels, bounds, words.view(np.int32))
    expected = oracle.open_uniform(words[:, 0], words[:, 1])
    np.testing.assert_allclose(uniforms, expected, rtol=3e-7)
    assert uniforms.min() > 0
    assert uniforms.max() < 1
    # At u = 1 - 2**-24 the variate turns on the last bit of u.
    inside = expected < 1 - 2.0**-18
    np.testing.assert_allclose(gumbels[inside], -np.log(-np.log1p(-expected[inside])), rtol=2e-6, atol=2e-6)
    assert gumbels[0] == pytest.approx(45.05, abs=0.01)
    assert np.all(np.isfinite(gumbels))
    assert np.all(bounds >= gumbels)
    likely = (gumbels > 3) & (words[:, 0] > 2**16)
    assert np.all(bounds[likely] - gumbels[likely] < 0.1)


# --- the race -----------------------------------------------------------------------------------------------------------------


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


# --- verification -------------------------------------------------------------------------------------------------------------


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


@pytest.mark.skipif("simulator" not in EXECUTORS, reason="needs the simulator")
def test_column_gumbel_is_that_of_the_race() -> None:
    out = np.zeros(6, np.float32)
    columns = np.array([0, 255, 256, 1023, 1024, 2000], np.int32)
    for name in ("cpu", "simulator"):
        Launch(name).run(write_column_gumbels, out, columns)
        np.testing.assert_allclose(out, oracle.column_gumbels((3, -4), 9, ROLE_DRAFT, 2001)[columns], rtol=1e-5)


@kernel(writes=("out",))
def write_column_gumbels(out, columns):
    for i in range(cuda.grid(1), columns.shape[0], cuda.gridsize(1)):
        out[i] = column_gumbel(3, -4, 9, ROLE_DRAFT, columns[i])


def test_the_batch_of_these_tests_is_what_it_says() -> None:
    case = batch(0, 40)
    assert case.args["temperature"].shape == (SLOTS,)
    assert [bool(case.args["temperature"][slot] > 0) for slot in case.args["idx_mapping"][:4]] == [True, True, False, True]
    assert u32(3) == 3
