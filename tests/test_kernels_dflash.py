"""Every kernel of the block drafters against its NumPy oracle, under njit and in the simulator, over grids and block sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_dflash as oracle
from kernels.block_attend import block_attend
from kernels.block_attention import block_attention
from kernels.block_conv import block_conv
from kernels.block_inputs import block_embed, block_inputs
from kernels.block_join import join_conv, join_norm
from kernels.candidates import top_candidates
from kernels.context_store import store_context
from kernels.draft_store import store_drafts
from kernels.logit_scale import logit_scale
from kernels.selector import edge_scores, selector_walk
from kernels.tap import tap
from tests.fused_cases import check as check_stored
from tests.fused_cases import out_of, warps, wide_args
from tests.kernel_cases import Launch, floats, guarded, ints, launches, live, poisoned, untouched
from tests.storage_cases import STORAGES, stored

CAPACITY = 5
EPS = 1e-6
ROW_LAUNCHES = launches((1, 1), (2, 3), (7, 4), (1, 32))
HEAD_LAUNCHES = launches((1, 1), ((2, 2), 3), ((5, 7), 2))
WARP_LAUNCHES = warps(((1, 1), 1), ((2, 3), 3), ((7, 2), 4))
STORAGE = pytest.mark.parametrize("storage", STORAGES)


@ROW_LAUNCHES
@STORAGE
@pytest.mark.parametrize(("count", "column"), [(0, 6), (1, 12), (CAPACITY, 0)])
def test_tap(launch: Launch, storage: str, count: int, column: int) -> None:
    args = {
        "features": out_of(storage, CAPACITY, 18),
        "residual": poisoned(floats(1, CAPACITY, 6), count),
        "column": column,
        "num_tokens": live(count),
    }
    check_stored(launch, tap, args, {"features": oracle.tap(**wide_args(args))}, storage)


def rope_table(length: int, head_dim: int) -> np.ndarray:
    angles = np.arange(length)[:, None] * 0.7 ** np.arange(head_dim // 2)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@WARP_LAUNCHES
@STORAGE
@pytest.mark.parametrize(("layers", "kv_heads", "head_dim"), [(1, 1, 4), (3, 2, 6), (2, 3, 64)], ids=str)
@pytest.mark.parametrize(("block_size", "count"), [(1, 7), (4, 7), (4, 0)])
def test_store_context(
    launch: Launch, storage: str, layers: int, kv_heads: int, head_dim: int, block_size: int, count: int
) -> None:
    args = {
        "cache": stored(floats(2, layers, 2, 12 // block_size, block_size, kv_heads, head_dim), storage),
        "context_kv": poisoned(floats(3, 8, layers * 2 * kv_heads * head_dim), count),
        "k_norms": floats(4, layers, head_dim),
        "rope_table": rope_table(20, head_dim),
        "positions": poisoned(ints(19, 0, 7, 8, 1, 5, 5, 3), count),
        # Committed, without a page, committed, rejected, the anchor's place, finished, no slot, a pad.
        "token_slot": ints(2, 2, 0, 0, 3, 1, 4, 2),
        "slot_mapping": ints(11, -1, 0, 5, 6, 7, 8, 9),
        "num_computed": ints(8, 20, 20, 1),
        "finished": ints(0, 2, 0, 0),
        "eps": EPS,
        "num_tokens": live(count),
    }
    check_stored(launch, store_context, args, {"cache": oracle.store_context(**wide_args(args))}, storage)


def run_block_inputs(launch: Launch, rows: int, queries: int, count: int, **slots: np.ndarray) -> dict:
    outputs = {
        "block_ids": untouched(rows * queries, dtype=np.int32),
        "block_positions": untouched(rows * queries, dtype=np.int32),
        "pick_rows": untouched(rows * (queries - 1), dtype=np.int32),
        "context_lens": untouched(rows, dtype=np.int32),
        "block_lens": untouched(rows, dtype=np.int32),
        "block_live": untouched(2, dtype=np.int32),
    }
    inputs = {"mask_token_id": 7, "max_model_len": 12, "num_requests": live(count), **slots}
    expected = oracle.block_inputs(rows, queries, **inputs)
    launch.check(block_inputs, {**outputs, **inputs}, expected)
    rest: dict[str, Any] = {"residual": untouched(rows * queries, 6), "table": floats(38, 60, 6), "scale": 1.5}
    launch.check(block_embed, {**outputs, **inputs, **rest}, oracle.block_embed(rows, queries, **inputs, **rest))
    return expected


@ROW_LAUNCHES
def test_block_inputs_of_the_public_fixture(launch: Launch) -> None:
    """DFLASH.md 3.4: two requests, k = 2, anchors 42 and 88, mask 7, the third row a pad."""
    slots = {"num_computed": ints(1, 0, 3), "last_sampled": ints(88, 5, 42), "idx_mapping": ints(2, 0, -1)}
    expected = run_block_inputs(launch, 3, 3, 2, **slots)
    assert expected["block_ids"].tolist() == [42, 7, 7, 88, 7, 7, 0, 0, 0]
    assert expected["block_positions"].tolist() == [3, 4, 5, 1, 2, 3, 0, 0, 0]
    assert (expected["context_lens"] + expected["block_lens"]).tolist() == [6, 4, 0]
    assert expected["pick_rows"].tolist() == [1, 2, 4, 5, 0, 0]


@ROW_LAUNCHES
@pytest.mark.parametrize("computed", [8, 9, 10, 11, 12])
@pytest.mark.parametrize("queries", [2, 4])
def test_block_inputs_at_the_end_of_the_model_length(launch: Launch, computed: int, queries: int) -> None:
    slots = {"num_computed": ints(computed, 3), "last_sampled": ints(1, 2), "idx_mapping": ints(0, 9)}
    expected = run_block_inputs(launch, 2, queries, 2, **slots)
    assert expected["block_positions"].max() <= 11
    assert expected["block_lens"].tolist() == [min(queries, 12 - computed), 0]


# Blocks of three slots scattered over the cache, -1 behind the last one; block 4 belongs to nobody and holds NaN.
TABLES = ints(7, 2, 9, -1, -1, -1, -1, -1, 0, 8, 3, 5).reshape(3, 4)


def attention_case(
    num_heads: int, kv_heads: int, head_dim: int, block_size: int, window: int, causal: int, storage: str = "float32"
) -> dict:
    queries, rows = 4, 3
    cache = floats(5, 2, 2, 10, block_size, kv_heads, head_dim)
    cache[:, :, 4] = np.nan
    qkv = poisoned(floats(6, rows * queries, (num_heads + 2 * kv_heads) * head_dim), 2 * queries)
    return {
        "out": out_of(storage, rows * queries, num_heads * head_dim),
        "qkv": qkv,
        "cache": stored(cache, storage),
        "block_tables": TABLES,
        "idx_mapping": ints(2, 0, -1),
        "context_lens": ints(3 * block_size + 1, block_size, 0),
        "block_lens": ints(4, 3, 0),
        "layer": 1,
        "num_heads": num_heads,
        "window": window,
        "causal": causal,
        "scale": head_dim**-0.5,
        "num_tokens": live(2 * queries),
    }


@launches((1, 1), ((2, 2), 3), ((5, 3), 2))
@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim"), [(3, 1, 4), (4, 2, 6)], ids=str)
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("window", [0, 1, 4, 7])
@pytest.mark.parametrize("causal", [0, 1])
def test_block_attention(
    launch: Launch, num_heads: int, kv_heads: int, head_dim: int, block_size: int, window: int, causal: int
) -> None:
    args = attention_case(num_heads, kv_heads, head_dim, block_size, window, causal)
    launch.check(block_attention, args, {"out": oracle.block_attention(**args)}, rtol=1e-4, atol=1e-5)


@launches(((5, 3), 2))
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_block_attention_over_16_bit_pages(launch: Launch, storage: str) -> None:
    args = attention_case(4, 2, 6, 3, 0, 0, storage)
    check_stored(launch, block_attention, args, {"out": oracle.block_attention(**wide_args(args))}, storage)


@launches(((2, 1), 64))
@pytest.mark.parametrize("context", [0, 124, 127, 128, 129, 290])
def test_block_attention_across_chunks_of_keys(launch: Launch, context: int) -> None:
    """The seam between context and block falls before, on and behind the border of a chunk; scores grow along the keys."""
    args = attention_case(2, 1, 4, 100, 0, 0)
    args["context_lens"] = ints(context, 0, 0)
    args["cache"][1, 0, TABLES[2, :3], :, 0, 0] = np.linspace(0, 40, 300, dtype=np.float32).reshape(3, 100)
    args["qkv"][:, [0, 4]] = 1.0
    launch.check(block_attention, args, {"out": oracle.block_attention(**args)}, rtol=1e-4, atol=1e-5)


def attend_case(
    storage: str,
    head_dim: int,
    num_heads: int,
    queries: int,
    contexts: tuple[int, int],
    lengths: tuple[int, int],
    window: int,
    causal: int,
    block_size: int = 16,
) -> dict:
    """Two requests and a pad; pages that nobody may read are NaN."""
    kv_heads, slots, blocks = 2, 3, -(-max(contexts) // block_size) + 1
    tables = np.random.default_rng(5).permutation(slots * blocks).reshape(slots, blocks).astype(np.int32)
    caches = floats(31, 2, slots * blocks, block_size, kv_heads, head_dim)
    idx_mapping = ints(2, 0, -1)
    seen = np.zeros((slots * blocks, block_size), bool)
    for slot, context in zip(idx_mapping, contexts, strict=False):
        at = np.arange(context)
        seen[tables[slot, at // block_size], at % block_size] = True
    caches[:, ~seen] = np.nan
    return {
        "out": out_of(storage, 3 * queries, num_heads * head_dim),
        "k_cache": stored(caches[0], storage),
        "v_cache": stored(caches[1], storage),
        "qkv": poisoned(floats(33, 3 * queries, (num_heads + 2 * kv_heads) * head_dim), 2 * queries),
        "q_gain": floats(34, head_dim),
        "k_gain": floats(35, head_dim),
        "table": rope_table(max(map(sum, zip(contexts, lengths, strict=True))), head_dim),
        "block_tables": tables,
        "idx_mapping": idx_mapping,
        "context_lens": ints(*contexts, 0),
        "block_lens": ints(*lengths, 0),
        "num_heads": num_heads,
        "eps": EPS,
        "window": window,
        "causal": causal,
        "scale": head_dim**-0.5,
        "num_requests": live(2),
    }


@warps(((1, 1, 1), 1), ((3, 2, 2), 4), ((2, 1, 3), 4))
@STORAGE
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("num_heads", "queries", "contexts", "lengths"),
    [(2, 4, (0, 70), (4, 3)), (6, 8, (64, 129), (8, 8)), (8, 16, (37, 190), (16, 1)), (2, 3, (1, 63), (0, 3))],
    ids=str,
)
@pytest.mark.parametrize(("window", "causal"), [(0, 0), (0, 1), (70, 0), (5, 1), (2, 0)])
def test_block_attend(
    launch: Launch,
    storage: str,
    head_dim: int,
    num_heads: int,
    queries: int,
    contexts: tuple[int, int],
    lengths: tuple[int, int],
    window: int,
    causal: int,
) -> None:
    if launch.executor == "simulator" and (head_dim, storage, queries, window, launch.block) != (64, "float32", 3, 5, 4):
        pytest.skip("ten seconds each in the simulator; the cpu executor runs them all")
    check_attend(launch, attend_case(storage, head_dim, num_heads, queries, contexts, lengths, window, causal), lengths, storage)


def check_attend(launch: Launch, args: dict, lengths: tuple[int, int], storage: str) -> None:
    held = {name: arg.copy() if isinstance(arg, np.ndarray) else arg for name, arg in args.items()}
    launch.run(block_attend, *(held[name] for name in block_attend.params))
    compare_attend(args, held["out"], lengths, storage)
    for name, value in held.items():
        if isinstance(value, np.ndarray) and name != "out":
            assert value.tobytes() == args[name].tobytes(), f"block_attend stored to {name}"


def compare_attend(args: dict, out: np.ndarray, lengths: tuple[int, int], storage: str) -> None:
    """Rows beyond the model length yield anything but NaN: nobody looks at them. Pads are as they were."""
    queries = len(out) // 3
    looked_at = np.concatenate([np.arange(queries) < length for length in (*lengths, queries)])
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[storage]
    now, expected = wide_args({"out": out})["out"], oracle.block_attend(**wide_args(args))
    np.testing.assert_allclose(now[looked_at], expected[looked_at], rtol=tolerance, atol=tolerance)
    assert np.isfinite(now).all()


@HEAD_LAUNCHES
@STORAGE
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("taps", "groups", "queries"), [(2, 3, 4), (3, 1, 2), (1, 6, 3), (4, 2, 4)], ids=str)
def test_block_conv(launch: Launch, storage: str, side: int, taps: int, groups: int, queries: int) -> None:
    count = 2 * queries
    args = {
        "out": out_of(storage, 3 * queries, 6),
        "x": stored(poisoned(floats(7, 3 * queries, 6), count), storage),
        "base_kernel": floats(8, 2, taps, 6),
        "delta": poisoned(floats(9, 3 * queries, 2 * taps * groups), count),
        "side": side,
        "queries": queries,
        "num_tokens": live(count),
    }
    check_stored(launch, block_conv, args, {"out": oracle.block_conv(**wide_args(args))}, storage)


def join_case(storage: str, joins: int, groups: int, queries: int, width: int = 12) -> dict:
    rows, live_rows = 3 * queries, 2 * queries
    case = {
        "total": untouched(rows, width),
        "out": out_of(storage, rows, width),
        "delta": untouched(rows, 4 * groups),
        "residual": poisoned(floats(21, rows, width), live_rows),
        "added": poisoned(floats(22, rows, width), live_rows if joins else 0),
        "done_kernel": floats(23, 2, 2, width) if joins else np.full((2, 2, width), np.nan, np.float32),
        "done_delta": poisoned(floats(24, rows, 4 * groups), live_rows if joins else 0),
        "gain": floats(25, width),
        "base_kernel": floats(26, 2, 2, width),
        "projection": stored(floats(27, 4 * groups, width), storage),
        "eps": EPS,
        "joins": joins,
        "queries": queries,
        "num_requests": live(2),
    }
    case["base_kernel"][1] = np.nan  # the other side's
    if joins:
        case["done_kernel"][0] = np.nan
        case["done_delta"][:, : 2 * groups] = np.nan
    return case


@warps(((1, 1), 1), ((3, 2), 3), ((2, 1), 8))
@STORAGE
@pytest.mark.parametrize("joins", [0, 1])
@pytest.mark.parametrize(("groups", "queries"), [(3, 4), (1, 2), (6, 3), (4, 9)], ids=str)
def test_join_conv(launch: Launch, storage: str, joins: int, groups: int, queries: int) -> None:
    """Rows of pads and whatever belongs to the other side are NaN; a neighbour in front of an anchor is another request's."""
    args = join_case(storage, joins, groups, queries)
    check_stored(launch, join_conv, args, oracle.join_conv(**wide_args(args)), storage)


@warps(((1, 1), 1), ((3, 2), 3), ((9, 1), 4))
@STORAGE
@pytest.mark.parametrize(("groups", "queries", "width"), [(3, 4, 12), (1, 2, 12), (5, 3, 80)], ids=str)
def test_join_norm(launch: Launch, storage: str, groups: int, queries: int, width: int) -> None:
    case = join_case(storage, 1, groups, queries, width)
    names = ("out", "residual", "added", "done_kernel", "done_delta", "gain", "eps", "queries")
    args = {**{name: case[name] for name in names}, "num_tokens": live(2 * queries)}
    check_stored(launch, join_norm, args, {"out": oracle.join_norm(**wide_args(args))}, storage)


@HEAD_LAUNCHES
@pytest.mark.parametrize(("multiplier", "cap"), [(0.2, 20.0), (3.0, 0.0), (0.19611613513818404, 2.0)])
def test_logit_scale(launch: Launch, multiplier: float, cap: float) -> None:
    logits = floats(10, CAPACITY, 9) * 30
    logits[0, :2] = 1e4, -1e4
    args = {"logits": guarded(logits, 3), "multiplier": multiplier, "cap": cap, "num_rows": live(3)}
    launch.check(logit_scale, args, {"logits": oracle.logit_scale(**args)}, rtol=2e-6, atol=4e-6)


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


@ROW_LAUNCHES
def test_store_drafts(launch: Launch) -> None:
    """A whole block, one cut by the model length, one of its anchor alone, a chunk of a prompt, a finished row, no slot, a pad."""
    args = {
        "draft_tokens": untouched(7, 3, dtype=np.int32),
        "num_draft": untouched(7, dtype=np.int32),
        "chosen": np.arange(100, 121, dtype=np.int32),
        "block_lens": ints(4, 3, 1, 4, 4, 4, 4),
        "finished": ints(0, 0, 0, 0, 1, 0, 0),
        "idx_mapping": ints(2, 0, 1, 3, 4, 7, 5),
        "num_sampled": ints(1, 2, 4, 0, 1, 1, 1),
        "num_requests": live(6),
    }
    drafts, counts = oracle.store_drafts(**args)
    launch.check(store_drafts, args, {"draft_tokens": drafts, "num_draft": counts})
    assert drafts.tolist() == [[103, 104, -1], [-1] * 3, [100, 101, 102], [-1] * 3, [-1] * 3, [-7] * 3, [-7] * 3]
    assert counts.tolist() == [2, 0, 3, 0, 0, -7, -7]
