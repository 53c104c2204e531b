"""Arguments of the kernels of a draft block, and what their results must be, for CPU and GPU tests."""

from __future__ import annotations

import numpy as np

from kernels import oracle_dflash as oracle
from tests.fused_cases import out_of, wide_args
from tests.kernel_cases import floats, ints, live, poisoned, untouched
from tests.storage_cases import stored

EPS = 1e-6


def rope_table(length: int, head_dim: int) -> np.ndarray:
    angles = np.arange(length)[:, None] * 0.7 ** np.arange(head_dim // 2)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


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


def compare_attend(args: dict, out: np.ndarray, lengths: tuple[int, int], storage: str) -> None:
    """Rows beyond the model length yield anything but NaN: nobody looks at them. Pads are as they were."""
    queries = len(out) // 3
    looked_at = np.concatenate([np.arange(queries) < length for length in (*lengths, queries)])
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[storage]
    now, expected = wide_args({"out": out})["out"], oracle.block_attend(**wide_args(args))
    np.testing.assert_allclose(now[looked_at], expected[looked_at], rtol=tolerance, atol=tolerance)
    assert np.isfinite(now).all()


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
