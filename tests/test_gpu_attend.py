"""The GPU forms of a step's attention, from their own source in an emulated warp: new keys, masks, fragments, where sums lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_attend
from tests.emulated_module import gpu_module
from tests.kernel_cases import floats
from tests.storage_cases import LIMIT, stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}
MODULES = (
    "attend_pages_gpu",
    "attend_matrix_gpu",
    "attend_lanes_gpu",
    "attend_heads_gpu",
    "attend_fold_gpu",
    "attend_keys_gpu",
    "attend_cluster_gpu",
    "attend_step_gpu",
)
"""Of a step's attention, each before those that import it."""


def step_of(storage: str, normed: bool, head_dim: int, block_size: int, before: int, rows: int, group: int) -> dict[str, Any]:
    """Arguments of a step whose second request brings `rows` rows behind `before` keys; cells of this step hold NaN."""
    kv_heads, eps, token, pages = 2, 1e-5, 2, -(-(before + rows) // block_size)
    tables = np.zeros((2, pages + 1), np.int32)
    tables[1, :pages] = np.random.default_rng(1).permutation(pages + 2)[:pages]
    positions = np.append([7, 7], before + np.arange(rows)).astype(np.int32)
    cells = tables[1, positions // block_size] * block_size + positions % block_size
    slots = np.append([-1, -1], cells[token:]).astype(np.int32)
    heads = group * kv_heads
    caches = []
    for seed in (7, 8):
        cache = np.full((pages + 2, block_size, kv_heads, head_dim), np.nan, np.float32)
        past = np.arange(before)
        cache[tables[1, past // block_size], past % block_size] = floats(seed, before, kv_heads, head_dim)
        caches.append(stored(cache, storage))
    angles = np.arange(max(before + rows, 8))[:, None] * 0.7 ** np.arange(head_dim // 2)
    return {
        "out": stored(np.full((token + rows, heads * head_dim), -7, np.float32), storage),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "qkv": floats(9, 16, (heads + 2 * kv_heads) * head_dim)[: token + rows],
        "q_gain": floats(10, head_dim) if normed else None,
        "k_gain": floats(11, head_dim) if normed else None,
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "block_tables": tables,
        "positions": positions,
        "slot_mapping": slots,
        "idx_mapping": np.array([0, 1], np.int32),
        "query_start_loc": np.array([2, 2, token + rows], np.int32),
        "num_heads": np.int32(heads),
        "eps": np.float32(eps),
        "scale": np.float32(0.3),
        "stored": np.int32(0),
        "num_requests": np.array([2], np.int32),
    }


def run_step(args: dict[str, Any], storage: str, warps: int, blocks: int, form: str = "STEP") -> None:
    warp = Warp(warps, blocks)
    parts: dict[str, Any] = {}
    for name in MODULES:
        parts[name] = gpu_module(name, warp, **parts)
    function = getattr(parts["attend_step_gpu"], form)[NUMPY[storage]]
    warp.run(function, *args.values(), np.array([1.0]), np.array([4.0]), np.array([5.0]))


@pytest.mark.parametrize(
    ("storage", "normed", "head_dim", "block_size", "before", "rows", "group", "warps", "blocks"),
    [
        ("bfloat16", False, 64, 16, 0, 1, 3, 1, 1),
        ("float16", True, 64, 16, 15, 2, 10, 1, 1),
        ("bfloat16", True, 128, 16, 37, 1, 4, 1, 1),
        ("float16", False, 128, 12, 30, 5, 4, 2, 1),
        ("bfloat16", True, 64, 32, 12, 8, 2, 2, 1),
        ("bfloat16", True, 128, 16, 150, 2, 4, 4, 2),
        ("float16", True, 64, 16, 156, 8, 2, 2, 3),
        ("bfloat16", True, 64, 16, 200, 8, 2, 8, 1),
    ],
    ids=str,
)
def test_a_step_of_attention(
    storage: str, normed: bool, head_dim: int, block_size: int, before: int, rows: int, group: int, warps: int, blocks: int
) -> None:
    """Warps of a cluster share the tiles of one request, several each or none, and nothing of another is read."""
    args = step_of(storage, normed, head_dim, block_size, before, rows, group)
    wide: dict[str, Any] = {name: widened(arg) if name in {"out", "k_cache", "v_cache"} else arg for name, arg in args.items()}
    kernel = oracle_attend.norm_attend_step if normed else oracle_attend.attend_step
    expected = kernel(**{name: arg for name, arg in wide.items() if normed or name not in {"q_gain", "k_gain", "eps"}})

    run_step(args, storage, warps, blocks)
    for name, values in zip(("out", "k_cache", "v_cache"), expected, strict=True):
        np.testing.assert_allclose(widened(args[name]), values, rtol=2e-2, atol=2e-2, err_msg=name)


@pytest.mark.parametrize(
    ("head_dim", "block_size", "before", "rows", "warps", "blocks"),
    [(64, 16, 37, 1, 1, 1), (64, 16, 156, 8, 2, 3), (128, 12, 30, 5, 2, 1), (64, 16, 30, 8, 1, 1)],
)
def test_both_layouts_yield_the_same(head_dim: int, block_size: int, before: int, rows: int, warps: int, blocks: int) -> None:
    """But for roundings; new keys in tiles that a warp takes later, too."""
    found = []
    for form in ("STEP", "FEW"):
        args = step_of("bfloat16", True, head_dim, block_size, before, rows, 2)
        run_step(args, "bfloat16", warps, blocks, form)
        found.append([widened(args[name]) for name in ("out", "k_cache", "v_cache")])
    for other, few in zip(*found, strict=True):
        np.testing.assert_allclose(few, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("storage", "value", "form"),
    [
        ("bfloat16", np.nan, "STEP"),
        ("float16", np.inf, "FEW"),
        ("float16", 7e4, "STEP"),
        ("float16", -1e30, "FEW"),
        ("bfloat16", LIMIT["bfloat16"], "STEP"),
    ],
)
def test_a_draft_without_a_number_spoils_no_row_before_it(storage: str, value: float, form: str) -> None:
    """Its value is in the tile of the rows before it, which weigh it by 0: NaN would outlive that."""
    found = []
    for spoiled in (False, True):
        args = step_of(storage, True, 64, 16, 37, 3, 2)
        if spoiled:
            args["qkv"][4, -2 * 64] = value  # of kv head 0
        run_step(args, storage, 2, 1, form)
        found.append(widened(args["out"])[2:].reshape(3, 2, 2, 64))  # row, kv head, head, dim
    clean, spoiled_out = found
    np.testing.assert_array_equal(spoiled_out[:2], clean[:2])
    np.testing.assert_array_equal(spoiled_out[2, 1], clean[2, 1])
    assert np.isnan(spoiled_out[2, 0]).all()


@pytest.mark.parametrize("form", ["STEP", "FEW"])
def test_a_row_is_the_same_whatever_else_its_request_brings(form: str) -> None:
    """Bit for bit: warps add up several tiles each, and with more rows their last ones hold keys that the row does not see."""
    found = []
    for rows in (1, 6):
        args = step_of("bfloat16", True, 64, 16, 107, rows, 2)
        run_step(args, "bfloat16", 2, 2, form)
        found.append(args["out"][2])
    np.testing.assert_array_equal(*found)
