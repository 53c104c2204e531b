"""The GPU form of attention over many rows, from its own source in emulated warps: tiles, masks, swizzle, clusters, sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.attend import attend_rows, attend_wide_rows
from tests.emulated_module import gpu_module
from tests.fused_cases import check
from tests.kernel_cases import Launch, floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

NUMPY = {"bfloat16": "uint16", "float16": "float16"}


def rows_case(
    storage: str, head_dim: int, block_size: int, group: int, kv_heads: int, requests: list[tuple[int, int]]
) -> dict[str, Any]:
    """Requests (keys before, rows); pages in any order, NaN wherever no key of a request is; a pad behind the rows."""
    rows, heads = sum(count for _, count in requests), group * kv_heads
    pages = [-(-(before + count) // block_size) for before, count in requests]
    order = np.random.default_rng(1).permutation(sum(pages) + 2)
    tables, caches = np.full((len(requests) + 1, max(pages) + 1), -1, np.int32), []
    cells = []
    slots = [len(requests) - r for r in range(len(requests))]
    for slot, count, (before, new) in zip(slots, pages, requests, strict=True):
        tables[slot, :count], order = order[:count], order[count:]
        past = np.arange(before + new)
        cells.append((tables[slot, past // block_size], past % block_size))
    for seed in (7, 8):
        cache = np.full((sum(pages) + 2, block_size, kv_heads, head_dim), np.nan, np.float32)
        for r, cell in enumerate(cells):
            cache[cell] = floats(seed + 10 * r, len(cell[0]), kv_heads, head_dim)
        caches.append(stored(cache, storage))
    starts = np.cumsum([0, *(count for _, count in requests)])
    positions = np.concatenate([np.arange(before, before + count) for before, count in requests])
    query = np.full((rows + 1, heads * head_dim), np.nan, np.float32)
    query[:rows] = floats(9, rows, heads * head_dim)
    return {
        "out": stored(np.full((rows + 1, heads * head_dim), -7, np.float32), storage),
        "query": stored(query, storage),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_tables": tables,
        "positions": np.append(positions, -7).astype(np.int32),
        "idx_mapping": np.array([*slots, -1], np.int32),
        "query_start_loc": np.array([*starts, starts[-1]], np.int32),
        "num_heads": np.int32(heads),
        "scale": np.float32(0.3),
        "num_requests": np.array([len(requests)], np.int32),
    }


def expected_rows(args: dict[str, Any]) -> np.ndarray:
    stores = ("out", "query", "k_cache", "v_cache")
    wide: dict[str, Any] = {name: widened(arg) if name in stores else arg for name, arg in args.items()}
    return oracle.attend(**wide)


@pytest.mark.parametrize(
    ("storage", "head_dim", "block_size", "group", "kv_heads", "requests", "blocks", "warps"),
    [
        pytest.param("bfloat16", 64, 16, 3, 1, [(0, 5)], 1, 5, id="first"),
        pytest.param("float16", 128, 16, 4, 1, [(60, 9)], 1, 4, id="cached"),
        pytest.param("bfloat16", 128, 12, 2, 2, [(70, 3), (0, 20)], 2, 4, id="two-requests"),
        pytest.param("float16", 64, 16, 3, 1, [(0, 30), (75, 1), (40, 0)], 1, 4, id="an-empty-one"),
        pytest.param("bfloat16", 64, 32, 1, 1, [(140, 66)], 2, 4, id="several-tiles"),
        pytest.param("bfloat16", 64, 16, 2, 1, [(10, 9)], 2, 5, id="a-block-without-keys"),
        pytest.param("float16", 128, 16, 4, 1, [(150, 6)], 3, 4, id="three-blocks"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of pairs that are not there, whose results nobody stores
def test_attention_of_many_rows(
    storage: str, head_dim: int, block_size: int, group: int, kv_heads: int, requests: list[tuple[int, int]], blocks: int,
    warps: int,
) -> None:  # fmt: skip
    """Cells that no request has written hold NaN; blocks of a cluster have several tiles each, or none; a fifth warp only waits."""
    args = rows_case(storage, head_dim, block_size, group, kv_heads, requests)
    expected = expected_rows(args)
    warp = Warp(warps, blocks)
    parts: dict[str, Any] = {}
    for name in ("attend_slab_gpu", "attend_split_gpu", "attend_rows_gpu"):
        parts[name] = gpu_module(name, warp, **parts)
    forms = parts["attend_rows_gpu"].ROWS if head_dim == 64 else parts["attend_rows_gpu"].WIDE_ROWS
    form = forms[NUMPY[storage]]
    warp.run(form, *args.values(), np.array([1.0]), np.array([2.0]))
    np.testing.assert_allclose(widened(args["out"]), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("storage", NUMPY)
@pytest.mark.parametrize(
    ("head_dim", "block_size", "group", "kv_heads", "requests"),
    [
        (64, 16, 3, 3, [(0, 130), (700, 1), (0, 1), (5, 64), (1000, 200)]),
        (128, 16, 4, 2, [(0, 63), (513, 77), (30, 0), (640, 1)]),
        (64, 48, 1, 2, [(1, 2), (2000, 129)]),
        (128, 20, 8, 1, [(260, 65), (0, 8)]),
        *((64 * (1 + rows % 2), 16, 2, 1, [(rows % 70, rows)]) for rows in (1, 2, 31, 32, 33, 64, 65, 100)),
    ],
    ids=str,
)
def test_attention_of_many_rows_on_a_gpu(
    head_dim: int, block_size: int, group: int, kv_heads: int, requests: list[tuple[int, int]], storage: str, cluster: int
) -> None:
    args = rows_case(storage, head_dim, block_size, group, kv_heads, requests)
    launch, kernel = Launch("cuda", (5, 2), 128), replace(attend_rows if head_dim == 64 else attend_wide_rows, cluster=cluster)
    check(launch, kernel, args, {"out": expected_rows(args)}, storage)
