"""Kernels around the layers of a block drafter (taps, context, inputs, drafts) against their NumPy oracles, njit and simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_context
from kernels import oracle_dflash as oracle
from kernels.argmax import NO_TOKEN
from kernels.block_inputs import block_embed, block_inputs
from kernels.context_store import store_context
from kernels.draft_store import store_drafts
from kernels.keep_taps import keep_taps
from kernels.logit_scale import logit_scale
from kernels.tap import tap
from tests.block_cases import EPS, rope_table
from tests.fused_cases import check as check_stored
from tests.fused_cases import out_of, warps, wide_args
from tests.kernel_cases import Launch, floats, guarded, ints, launches, live, poisoned, untouched
from tests.storage_cases import LIMIT, STORAGES, stored

CAPACITY = 5
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
    check_stored(launch, tap, args, {"features": oracle_context.tap(**wide_args(args))}, storage)


@HEAD_LAUNCHES
@STORAGE
@pytest.mark.parametrize(("depth", "count"), [(1, 6), (3, 6), (3, 2), (3, 0)])
def test_keep_taps(launch: Launch, storage: str, depth: int, count: int) -> None:
    args = {
        "kept": out_of(storage, 4 * depth, 18),
        "kept_positions": untouched(4 * depth, dtype=np.int32),
        "kept_cells": untouched(4 * depth, dtype=np.int32),
        "draft_tokens": untouched(4, 3, dtype=np.int32),
        "num_draft": untouched(4, dtype=np.int32),
        "features": poisoned(floats(3, 7, 18), count),
        # Each slot once, and rows of none; a position without a page; a pad.
        "positions": poisoned(ints(7, 0, 5, 1, 9, 11, 2), count),
        "token_slot": poisoned(ints(2, 0, -1, 3, 4, 1, 0), count),
        "slot_mapping": poisoned(ints(30, 1, 2, 7, 4, -1, 9), count),
        "depth": depth,
        "num_tokens": live(count),
    }
    args["features"] = stored(args["features"], storage)
    check_stored(launch, keep_taps, args, oracle_context.keep_taps(**wide_args(args)), storage)


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
    args["context_kv"][[0, 2], -head_dim:] = [[np.nan], [LIMIT[storage]]]
    cache = oracle_context.store_context(**wide_args(args), limit=LIMIT[storage])
    check_stored(launch, store_context, args, {"cache": cache}, storage)


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


@HEAD_LAUNCHES
@pytest.mark.parametrize(("multiplier", "cap"), [(0.2, 20.0), (3.0, 0.0), (0.19611613513818404, 2.0)])
def test_logit_scale(launch: Launch, multiplier: float, cap: float) -> None:
    logits = floats(10, CAPACITY, 9) * 30
    logits[0, :2] = 1e4, -1e4
    args = {"logits": guarded(logits, 3), "multiplier": multiplier, "cap": cap, "num_rows": live(3)}
    launch.check(logit_scale, args, {"logits": oracle.logit_scale(**args)}, rtol=2e-6, atol=4e-6)


@ROW_LAUNCHES
def test_store_drafts(launch: Launch) -> None:
    """A whole block, one cut by the model length and one by a row of nothing, one of its anchor alone, a chunk of a prompt, a
    finished row, no slot, a pad."""
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
    args["chosen"][1] = NO_TOKEN
    drafts, counts = oracle.store_drafts(**args)
    launch.check(store_drafts, args, {"draft_tokens": drafts, "num_draft": counts})
    assert drafts.tolist() == [[103, 104, -1], [-1] * 3, [100, -1, -1], [-1] * 3, [-1] * 3, [-7] * 3, [-7] * 3]
    assert counts.tolist() == [2, 0, 1, 0, 0, -7, -7]
