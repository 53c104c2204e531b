"""The GPU forms of a draft block's joins and attention, from their own source in an emulated warp."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernels import oracle_dflash as oracle
from tests.block_cases import attend_case, compare_attend, join_case
from tests.emulated_memory import load16
from tests.emulated_module import gpu_module
from tests.storage_cases import TOLERANCE, widened
from tests.warp_emulator import Warp

NUMPY = {"float32": "float32", "bfloat16": "uint16", "float16": "float16"}


def vectors() -> ModuleType:
    """kernels/lang_vector.py, which refuses what the hardware would fault on."""
    module = ModuleType("kernels.lang_vector")

    def eight(array: np.ndarray, offset: Any) -> tuple[np.float32, ...]:
        load16(array, offset)
        return tuple(widened(array.reshape(-1)[int(offset) : int(offset) + 8]))

    def ask_for(array: np.ndarray, offset: Any) -> None:
        assert 0 <= int(offset) < array.size

    module.__dict__.update(EIGHT=dict.fromkeys(NUMPY.values(), eight), eight_float32=eight, ask_for=ask_for)
    return module


@pytest.mark.parametrize(
    ("storage", "joins", "groups", "queries", "width", "warps"),
    [("bfloat16", 1, 3, 3, 48, 2), ("float16", 0, 2, 2, 16, 1), ("float32", 1, 25, 1, 800, 1)],
    ids=str,
)
def test_joins(storage: str, joins: int, groups: int, queries: int, width: int, warps: int) -> None:
    """Warps take turns at rows, a block at groups and requests; more than three octets a lane; nothing is read before an anchor."""
    case = join_case(storage, joins, groups, queries, width)
    wide = {name: widened(arg) if name in {"out", "projection"} else arg for name, arg in case.items()}
    expected = oracle.join_conv(**wide)
    warp = Warp(warps)
    module = gpu_module("block_join_gpu", warp, attend_pages_gpu=gpu_module("attend_pages_gpu", warp), lang_vector=vectors())
    held = {name: arg.copy() if isinstance(arg, np.ndarray) else np.int32(arg) for name, arg in case.items()}
    held["eps"] = np.float32(case["eps"])
    shared = [np.full(size, np.nan, np.float32) for size in (2 * queries, queries, queries * width // groups)]
    warp.run(module.JOIN[NUMPY[storage]], *held.values(), *shared)
    tolerance = 2 * TOLERANCE[storage]
    for name, values in expected.items():
        np.testing.assert_allclose(widened(held[name]), values, rtol=tolerance, atol=tolerance, err_msg=name)
    if joins:
        names = ("out", "residual", "added", "done_kernel", "done_delta", "gain", "eps", "queries")
        rows = np.array([2 * queries], np.int32)
        held["out"] = case["out"].copy()
        warp.run(module.norm_form, *(held[name] for name in names), rows)
        normed = oracle.join_norm(**{name: wide[name] for name in names}, num_tokens=rows)
        np.testing.assert_allclose(widened(held["out"]), normed, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("storage", "head_dim", "block_size", "num_heads", "queries", "contexts", "lengths", "window", "causal", "warps", "blocks"),
    [
        ("bfloat16", 64, 16, 2, 3, (0, 15), (3, 2), 0, 0, 1, 1),
        ("float16", 64, 12, 4, 5, (3, 23), (0, 5), 0, 1, 2, 1),
        ("bfloat16", 128, 16, 2, 4, (32, 70), (4, 4), 5, 0, 2, 2),
        ("bfloat16", 64, 32, 2, 4, (64, 3), (4, 1), 20, 1, 1, 2),
    ],
    ids=str,
)
def test_block_attention(
    storage: str,
    head_dim: int,
    block_size: int,
    num_heads: int,
    queries: int,
    contexts: tuple[int, int],
    lengths: tuple[int, int],
    window: int,
    causal: int,
    warps: int,
    blocks: int,
) -> None:
    """Own keys across tiles, tiles in front of a window left out, warps with several tiles or none; nothing is stored but `out`."""
    case = attend_case(storage, head_dim, num_heads, queries, contexts, lengths, window, causal, block_size)
    held = {name: arg.copy() if isinstance(arg, np.ndarray) else np.int32(arg) for name, arg in case.items()}
    held |= {name: np.float32(case[name]) for name in ("eps", "scale")}
    warp = Warp(warps, blocks)
    parts: dict[str, Any] = {}
    for name in (
        "attend_pages_gpu",
        "attend_matrix_gpu",
        "attend_heads_gpu",
        "attend_fold_gpu",
        "attend_keys_gpu",
        "attend_cluster_gpu",
        "block_attend_gpu",
    ):
        parts[name] = gpu_module(name, warp, **parts)
    form = parts["block_attend_gpu"].BLOCK[NUMPY[storage]]
    warp.run(form, *held.values(), np.array([1.0]), np.array([4.0]), np.array([5.0]))
    compare_attend(case, held["out"], lengths, storage)
    for name, value in held.items():
        if isinstance(value, np.ndarray) and name != "out":
            assert value.tobytes() == case[name].tobytes(), name
