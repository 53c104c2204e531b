"""The GPU forms of a step's attention, from their own source in an emulated warp: new keys, masks, fragments, where sums lie."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernels import oracle_forward
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

STORAGE = pytest.mark.parametrize("storage", ["bfloat16", "float16"])
NUMPY = {"bfloat16": "uint16", "float16": "float16"}


def step_module(warp: Warp) -> Any:
    """kernels/attend_step_gpu.py over `warp`, with all that it uses."""
    project = ModuleType("kernels.project")
    project.divide = lambda a, b: np.int32(a // b)  # type: ignore[attr-defined]
    rotate = gpu_module("rotate", warp, project=project)
    tile = gpu_module("tile_gpu", warp)
    attend = gpu_module("attend_gpu", warp, tile_gpu=tile)
    exponential = gpu_module("exponential", warp)
    return gpu_module("attend_step_gpu", warp, rotate=rotate, tile_gpu=tile, attend_gpu=attend, exponential=exponential)


@STORAGE
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize(
    ("head_dim", "block_size", "before", "rows", "group", "tile"),
    [(64, 16, 0, 1, 3, 0), (128, 16, 37, 1, 4, 0), (128, 100, 30, 5, 4, 1), (64, 32, 13, 8, 2, 0)],
    ids=str,
)
def test_a_step_of_attention(
    storage: str, normed: bool, head_dim: int, block_size: int, before: int, rows: int, group: int, tile: int
) -> None:
    """One warp in the place of two: it takes every other tile of keys, and rotates all queries. Cells of this step hold NaN."""
    kv_heads, kv_head, eps, token = 2, 1, 1e-5, 2
    first_pair = 16 * tile
    pairs = min(rows * group - first_pair, 16)
    keys = before + (first_pair + pairs - 1) // group + 1
    tables = np.array([[0, 0, 0, 0], [3, 5, 2, 7]], np.int32)
    cells = np.arange(before + rows)
    blocks, offsets = tables[1][cells // block_size], cells % block_size
    caches = [floats(seed, 8, block_size, kv_heads, head_dim) for seed in (7, 8)]
    for cache in caches:
        held = cache[blocks[:before], offsets[:before]].copy()
        cache[...] = np.nan
        cache[blocks[:before], offsets[:before]] = held
    k_cache, v_cache = (stored(cache, storage) for cache in caches)
    heads = group * kv_heads
    qkv = floats(9, token + rows, (heads + 2 * kv_heads) * head_dim)
    positions = np.append([7, 7], before + np.arange(rows)).astype(np.int32)
    slots = np.append([-1, -1], blocks[before:] * block_size + offsets[before:]).astype(np.int32)
    angles = np.arange(64)[:, None] * 0.7 ** np.arange(head_dim // 2)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    gains: Any = (floats(10, head_dim), floats(11, head_dim)) if normed else (None, None)
    wide: Any = qkv.astype(np.float64)
    live = np.array([token + rows])
    if normed:
        wide = oracle_forward.head_norm(wide, *gains, heads, kv_heads, eps, live)
    wide = oracle_forward.rope(wide, table, positions, heads, kv_heads, live)
    wide = widened(stored(wide.astype(np.float32), storage)).reshape(token + rows, -1, head_dim)[token:]
    all_keys, all_values = widened(k_cache)[blocks, offsets, kv_head], widened(v_cache)[blocks, offsets, kv_head]
    all_keys[before:], all_values[before:] = wide[:, heads + kv_head], wide[:, heads + kv_heads + kv_head]

    warp = Warp()
    module = step_module(warp)
    ring, queries, stats = np.array([1.0]), np.array([2.0]), np.full(64, np.nan, np.float32)
    kind, scale, two = NUMPY[storage], np.float32(0.3), np.int32(2)
    i = np.int32

    def one_warp() -> None:
        at = (tables, i(1), i(kv_head))
        module.fetch_form(ring, k_cache, v_cache, *at, i(0), i(before), i(keys), i(0))
        pair = (i(token), i(group))
        span = (i(first_pair), i(pairs))
        rounding, one = np.float32(eps), i(1)
        module.QUERIES[kind](queries, k_cache, qkv, gains[0], table, positions, *pair, i(kv_head), *span, rounding, i(0), one)
        warp.barrier()
        module.KEYS[kind](
            ring, k_cache, v_cache, stats, queries, qkv, gains[1], table, tables, positions, slots, i(1), i(kv_head), i(heads),
            *pair, *span, i(before), i(keys), rounding, scale, True, i(0), i(0), two,
        )  # fmt: skip

    warp.run(one_warp)
    taken = (np.arange(keys) // 16) % 2 == 0
    for p in range(pairs):
        row, head = divmod(first_pair + p, group)
        scores = (all_keys[:keys] @ wide[row, kv_head * group + head]).astype(np.float64) * scale
        scores[~taken | (np.arange(keys) > before + row)] = -np.inf
        shares = np.exp(scores - scores.max())
        places = [int(module.sum_place_form(ring, k_cache, i(0), i(p), i(d))) for d in range(head_dim)]
        found = np.array([warp.float_at((1 << 16) + 4 * place) for place in places])
        used = widened(stored(shares.astype(np.float32), storage)).astype(np.float64)
        np.testing.assert_allclose(stats[p], scores.max(), rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(stats[16 + p], shares.sum(), rtol=3e-3)
        np.testing.assert_allclose(found, used @ all_values[:keys], rtol=2e-2, atol=2e-2)
    for row in range(keys - before):
        key = before + row
        if taken[key]:
            cell = (blocks[key], offsets[key], kv_head)
            np.testing.assert_array_equal(widened(k_cache[cell]), all_keys[key])
            np.testing.assert_array_equal(widened(v_cache[cell]), all_values[key])
