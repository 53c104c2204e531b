"""The GPU form of rotation and store, from its own source in emulated warps: sixteen dims of a head a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import lang_eight
from kernels import oracle_fused as oracle
from tests.emulated_module import gpu_module
from tests.kernel_cases import floats, live, poisoned
from tests.storage_cases import LIMIT, stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}


@pytest.mark.parametrize("storage", NUMPY)
@pytest.mark.parametrize(
    ("normed", "head_dim", "num_heads", "num_kv_heads", "tokens"), [(False, 64, 3, 1, 5), (True, 128, 4, 2, 3), (True, 64, 2, 2, 4)]
)
def test_rotation_and_store(storage: str, normed: bool, head_dim: int, num_heads: int, num_kv_heads: int, tokens: int) -> None:
    """Every other token is a pad, one has no cell; cells of nobody stay as they were, and two blocks share the heads."""
    angles = np.arange(20)[:, None] * 0.7 ** np.arange(head_dim // 2)
    cache = (4, 4, num_kv_heads, head_dim)
    args: dict[str, Any] = {
        "query": stored(np.full((tokens, num_heads * head_dim), -7, np.float32), storage),
        "k_cache": stored(floats(37, *cache), storage),
        "v_cache": stored(floats(38, *cache), storage),
        "qkv": poisoned(floats(39, tokens, (num_heads + 2 * num_kv_heads) * head_dim), tokens - 1),
        "q_gain": floats(40, head_dim) if normed else None,
        "k_gain": floats(41, head_dim) if normed else None,
        "table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        "positions": poisoned(np.array([19, 0, 7, 7, 1][:tokens], np.int32), tokens - 1),
        "slot_mapping": np.array([11, -1, 0, 5, 6][:tokens], np.int32),
        "num_heads": np.int32(num_heads),
        "eps": np.float32(1e-5),
        "num_tokens": live(tokens - 1),
    }
    args["qkv"][2, -2:], args["qkv"][0, -head_dim // 2] = (np.nan, -np.inf), LIMIT[storage]
    wide: dict[str, Any] = {name: widened(arg) if name in {"query", "k_cache", "v_cache"} else arg for name, arg in args.items()}
    wide["positions"] = np.maximum(wide["positions"], 0)
    kernel = oracle.norm_rotate_store if normed else oracle.rotate_store
    wide = {name: arg for name, arg in wide.items() if normed or name not in {"q_gain", "k_gain", "eps"}}
    expected = kernel(**wide, limit=LIMIT[storage])
    warp = Warp(2, 2)
    parts = {"lang_eight": lang_eight}
    parts["behind_product"] = gpu_module("behind_product", warp, **parts)
    form = gpu_module("rotate_gpu", warp, **parts).ROTATE[NUMPY[storage]]
    warp.run(form, *args.values())
    tolerance = {"bfloat16": 1e-2, "float16": 2e-3}[storage]
    for name, values in zip(("query", "k_cache", "v_cache"), expected, strict=True):
        np.testing.assert_allclose(widened(args[name]), values, rtol=tolerance, atol=tolerance, err_msg=name)
