"""Rotation and attention of the fused decode path against their oracles: pages scattered over the cache, ragged requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.attend import attend_rows, attend_wide_rows
from kernels.lang import Kernel
from kernels.rotate import norm_rotate_store, rotate_store
from kernels.rotate_many import norm_rotate_many, rotate_many
from tests.fused_cases import EPS, STORAGE, TABLES, attend_case, check, out_of, warps, wide_args
from tests.kernel_cases import Launch, floats, live, poisoned
from tests.storage_cases import LIMIT, stored, widened


@pytest.mark.parametrize("kernel", [rotate_store, norm_rotate_store, rotate_many, norm_rotate_many], ids=lambda k: k.name)
@warps(((2, 2), 3), ((1, 1), 10))
@STORAGE
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 1, 4), (4, 2, 64), (2, 1, 128)], ids=str)
def test_rotate_store(launch: Launch, kernel: Kernel, storage: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    angles = np.arange(20)[:, None] * 0.7 ** np.arange(head_dim // 2)
    cache = (4, 4, num_kv_heads, head_dim)
    args: dict[str, Any] = {
        "query": out_of(storage, 5, num_heads * head_dim),
        "k_cache": stored(floats(37, *cache), storage),
        "v_cache": stored(floats(38, *cache), storage),
        "qkv": poisoned(floats(39, 5, (num_heads + 2 * num_kv_heads) * head_dim), 4),
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "positions": poisoned(np.array([19, 0, 7, 7, 1], np.int32), 4),
        "slot_mapping": np.array([11, -1, 0, 5, 6], np.int32),
        "num_heads": num_heads,
        "num_tokens": live(4),
    }
    args["qkv"][2, -2:], args["qkv"][0, -head_dim // 2] = (np.nan, -np.inf), LIMIT[storage]
    if kernel in (norm_rotate_store, norm_rotate_many):
        args |= {"q_gain": floats(40, head_dim), "k_gain": floats(41, head_dim), "eps": EPS}
    wide = wide_args(args)
    wide["positions"] = np.maximum(wide["positions"], 0)
    query, keys, values = (oracle.norm_rotate_store if "eps" in args else oracle.rotate_store)(**wide, limit=LIMIT[storage])
    check(launch, kernel, args, {"query": query, "k_cache": keys, "v_cache": values}, storage)


def expected_attention(args: dict[str, Any]) -> np.ndarray:
    names = ("out", "query", "k_cache", "v_cache", "block_tables", "positions", "idx_mapping", "query_start_loc")
    wide = wide_args(args)
    scalars = {name: args[name] for name in ("num_heads", "scale", "num_requests")}
    return oracle.attend(**{name: wide[name] for name in names}, **scalars)


def rows_args(args: dict[str, Any]) -> dict[str, Any]:
    return {name: args[name] for name in attend_rows.params}


@warps(((2, 2, 2), 4), ((1, 1, 3), 10))
@STORAGE
@pytest.mark.parametrize(("starts", "lengths"), [([0, 3, 4], [11, 9]), ([0, 9, 9], [12, 0])], ids=["ragged", "empty"])
def test_attend_rows(launch: Launch, storage: str, starts: list[int], lengths: list[int]) -> None:
    args = attend_case(storage, 4, 2, 64 if launch.executor == "cuda" else 6, 4, starts, lengths)
    check(launch, attend_rows, rows_args(args), {"out": expected_attention(args)}, storage)


@warps(((2, 2, 2), 4))
@STORAGE
def test_nan_in_a_key_is_nobodys_who_does_not_see_it(launch: Launch, storage: str) -> None:
    """The last of three rows is a draft whose key and value are NaN: it is about to be rejected, and the rows before it are not."""
    args = attend_case(storage, 4, 2, 64 if launch.executor == "cuda" else 6, 4, [0, 3, 4], [11, 9])
    expected = expected_attention(args)
    expected[2] = np.nan
    tensor_cores = launch.executor == "cuda" and storage != "float32"  # these multiply by 0: who stores sees to it (rotate.kept)
    for name, value in (("k_cache", np.nan), ("v_cache", 0.0 if tensor_cores else np.nan)):
        args[name][TABLES[2, 10 // 4], 10 % 4] = stored(np.full(1, value, np.float32), storage)[0]
    check(launch, attend_rows, rows_args(args), {"out": expected}, storage)


@warps(((3, 1, 2), 4))
@STORAGE
def test_attend_rows_across_chunks(launch: Launch, storage: str) -> None:
    """Scores that grow along the keys of one request and fall along those of the other, so that the maximum moves or never does."""
    if launch.executor == "simulator" and storage != "bfloat16":
        pytest.skip("seconds each in the simulator: one stands for all")
    head_dim = {"cuda": 128, "cpu": 66, "simulator": 4}[launch.executor]
    args = attend_case(storage, 8, 2, head_dim, 100, [0, 5, 6], [129, 300])
    for slot, direction in ((2, 20.0), (0, -20.0)):
        ramp = np.linspace(0, direction, 300, dtype=np.float32).reshape(3, 100, 1)
        args["k_cache"][TABLES[slot, :3], :, :, 0] = stored(ramp, storage)
    args["query"][:6, ::head_dim] = stored(np.ones(1, np.float32), storage)[0]
    finite = {name: stored(np.nan_to_num(widened(args[name])), storage) for name in ("k_cache", "v_cache")}
    check(launch, attend_wide_rows, rows_args(args | finite), {"out": expected_attention(args | finite)}, storage)
