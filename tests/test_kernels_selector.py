"""Candidates of a draft block and the selector's walk over them against their NumPy oracles, under njit and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_dflash as oracle
from kernels.candidates import top_candidates
from kernels.selector import edge_scores, selector_walk
from tests.fused_cases import check as check_stored
from tests.fused_cases import warps, wide_args
from tests.kernel_cases import Launch, floats, ints, live, poisoned, untouched
from tests.storage_cases import STORAGES, stored

WARP_LAUNCHES = warps(((1, 1), 1), ((2, 3), 3), ((7, 2), 4))
STORAGE = pytest.mark.parametrize("storage", STORAGES)


def candidates_case(logits: np.ndarray, count: int, k: int, padding: int = 3) -> dict:
    rows, vocab_size = logits.shape
    wide = np.full((rows, vocab_size + padding), 1e9, np.float32)  # the padding would win
    wide[:, :vocab_size] = logits
    args = {"logits": poisoned(wide, count), "vocab_size": vocab_size, "num_rows": live(count)}
    return {"ids": untouched(rows, k, dtype=np.int32), "values": untouched(rows, k), **args}


def check_candidates(launch: Launch, args: dict) -> None:
    ids, values = oracle.top_candidates(**args)
    launch.check(top_candidates, args, {"ids": ids, "values": values}, rtol=0, atol=0)


def hard_rows(width: int) -> np.ndarray:
    """Ties inside a stretch and across its borders, NaN, infinities, zeros of both signs, fewer numbers than candidates."""
    logits = np.stack([floats(12, 1, width)[0]] * 9)
    logits[1] = logits[1].round(0)
    logits[2, [511, 512, 3, 1024]] = 9.0
    logits[3] = np.nan
    logits[4, 20:] = np.nan
    logits[4, [0, 5]] = -np.inf
    logits[5, [600, 7]] = np.inf
    logits[6] = -1.0
    logits[6, [2, 513]], logits[6, 700] = 0.0, -0.0
    logits[7, 3:] = -np.inf
    logits[8] = np.linspace(3, -3, width)  # all of the best in one stretch
    return logits


@warps((1, 1), (3, 3), (1, 16))
@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("width", [1100, 9000])  # too few stretches for a list, and enough
def test_top_candidates(launch: Launch, k: int, width: int) -> None:
    if launch.executor == "simulator" and (width > 1100 or k == 16):
        pytest.skip("the simulator takes a second for each thousand columns; the cpu executor runs them all")
    check_candidates(launch, candidates_case(hard_rows(width), 9, k))


@warps((2, 5))
@pytest.mark.parametrize("vocab_size", [1, 5, 511, 512, 513])
def test_top_candidates_of_a_small_vocabulary(launch: Launch, vocab_size: int) -> None:
    check_candidates(launch, candidates_case(floats(13, 3, vocab_size), 2, min(vocab_size, 6)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_top_candidates_with_many_ties(data: st.DataObject) -> None:
    width = data.draw(st.one_of(st.integers(1, 1600), st.integers(8000, 9000)))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    values = np.array(data.draw(st.lists(st.sampled_from([np.nan, -np.inf, -1.0, -0.0, 0.0, 2.0, np.inf]), min_size=1, max_size=4)))
    logits = rng.choice(values, (2, width)).astype(np.float32)
    if data.draw(st.booleans()):
        logits[rng.random(logits.shape) < 0.99] = np.nan
    check_candidates(Launch("cpu"), candidates_case(logits, 2, min(width, 9)))


def test_top_candidates_of_a_large_vocabulary() -> None:
    check_candidates(Launch("cpu"), candidates_case(floats(14, 2, 600_000), 2, 16))


def lattice(picks: int = 3, count: int = 4, rank: int = 5, vocab_size: int = 11, storage: str = "float32") -> dict:
    rows = 3 * picks
    rng = np.random.default_rng(15)
    ids = np.stack([rng.permutation(vocab_size)[:count] for _ in range(rows)]).astype(np.int32)
    block_ids = np.full(3 * (picks + 1), 7, np.int32)
    block_ids[:: picks + 1] = 10, -1, 99  # an anchor; two of rows that propose nothing
    return {
        "scores": untouched(rows, count, count),
        "ids": ids,
        "values": floats(16, rows, count),
        "gate": poisoned(floats(17, rows, rank), 2 * picks),
        "predecessors": stored(floats(18, vocab_size, rank), storage),
        "successors": stored(floats(19, vocab_size, rank), storage),
        "block_ids": block_ids,
        "picks": picks,
        "num_rows": live(2 * picks),
    }


@WARP_LAUNCHES
@STORAGE
@pytest.mark.parametrize("picks", [1, 3])
def test_edge_scores(launch: Launch, storage: str, picks: int) -> None:
    args = lattice(picks, storage=storage)
    check_stored(launch, edge_scores, args, {"scores": oracle.edge_scores(**wide_args(args))}, "float32")


def walk_case(count: int, picks: int, temperature: tuple[float, ...]) -> dict:
    """A whole block, one cut by the model length, a chunk of a prompt, a finished row, no slot, a pad; scores with ties and NaN."""
    scores = floats(20, 6 * picks, count, count)
    scores[0, 0, :4], scores[picks - 1] = (1, 3, 3, 2), np.nan
    scores[1, :, 3] = np.nan
    scores[2, :, 1] = -np.inf
    return {
        "draft_tokens": untouched(6, picks, dtype=np.int32),
        "num_draft": untouched(6, dtype=np.int32),
        "q_ids": untouched(6, picks, count, dtype=np.int32),
        "q_probs": untouched(6, picks, count),
        "ids": np.random.default_rng(3).permutation(3000)[: 6 * picks * count].reshape(-1, count).astype(np.int32),
        "scores": scores,
        "context_lens": ints(40, 7, 9, 11, 3, 2),
        "block_lens": ints(picks + 1, picks, picks + 1, picks + 1, picks + 1, 0),
        "finished": ints(0, 0, 0, 0, 1, 0),
        "idx_mapping": ints(2, 0, 3, 4, 9, 5),
        "num_sampled": ints(1, 2, 0, 1, 1, 1),
        "temperature": np.array(temperature, np.float32),
        "seed": ints(*range(12)).reshape(6, 2) - 5,
        "num_requests": live(5),
    }


WALKS = pytest.mark.parametrize(("count", "picks"), [(4, 4), (16, 5), (40, 3)], ids=str)


@WARP_LAUNCHES
@WALKS
@pytest.mark.parametrize("temperature", [(0.0,) * 6, (1.0, 0.0, 0.2, 0.7, 5.0, 1.0), (0.05,) * 6], ids=str)
def test_selector_walk(launch: Launch, count: int, picks: int, temperature: tuple[float, ...]) -> None:
    args = walk_case(count, picks, temperature)
    expected = oracle.selector_walk(**args)
    launch.check(selector_walk, args, expected, rtol=1e-4, atol=1e-6)
    assert expected["num_draft"].tolist() == [picks - 1, -7, picks, 0, 0, -7]
    drawn = expected["q_ids"][2] >= 0
    np.testing.assert_allclose(np.where(drawn, expected["q_probs"][2], 0).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drafts_are_drawn_from_what_is_said(temperature: float) -> None:
    """4,000 seeds: how often each candidate is chosen first, against the probabilities written beside it."""
    requests, count = 4000, 6
    scores = np.tile(np.array([0.0, 1.0, -1.0, 2.0, -np.inf, 0.5], np.float32), (requests, count, 1))
    seeds = np.random.default_rng(7).integers(-(2**31), 2**31, (requests, 2)).astype(np.int32)
    outputs = (
        untouched(requests, 1, dtype=np.int32),
        untouched(requests, dtype=np.int32),
        untouched(requests, 1, count, dtype=np.int32),
        untouched(requests, 1, count),
    )
    ids = np.tile(np.arange(100, 100 + count, dtype=np.int32), (requests, 1))
    every = np.arange(requests, dtype=np.int32)
    ones = np.ones(requests, np.int32)
    rows = (every % 50, 2 * ones, 0 * ones, every, ones, np.full(requests, temperature, np.float32), seeds, live(requests))
    Launch("cpu").run(selector_walk, *outputs, ids, scores, *rows)
    drafts, _, q_ids, q_probs = outputs
    shares = np.exp(scores[0, 0].astype(np.float64) / temperature)
    shares /= shares.sum()
    np.testing.assert_allclose(q_probs[:, 0], np.tile(shares, (requests, 1)), rtol=1e-5)
    assert (q_ids[:, 0, 4] == -1).all()
    counts = np.bincount(drafts[:, 0] - 100, minlength=count)
    assert counts[4] == 0
    deviation = np.abs(counts / requests - shares) / np.sqrt(shares * (1 - shares) / requests + 1e-12)
    assert deviation.max() < 4
