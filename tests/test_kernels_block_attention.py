"""Attention of draft blocks against its NumPy oracle, under njit and in the simulator, over grids and block sizes."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import oracle_dflash as oracle
from kernels.block_attend import block_attend
from kernels.block_attention import block_attention
from tests.block_cases import attend_case, compare_attend
from tests.fused_cases import check as check_stored
from tests.fused_cases import out_of, warps, wide_args
from tests.kernel_cases import Launch, floats, ints, launches, live, poisoned
from tests.storage_cases import STORAGES, stored

STORAGE = pytest.mark.parametrize("storage", STORAGES)


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
