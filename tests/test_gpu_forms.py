"""The GPU forms of the products, from their own source in an emulated warp: lanes, fragments, tails, clamps, alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

STORAGE = pytest.mark.parametrize("storage", ["bfloat16", "float16"])
RING = np.zeros(1, np.float32)  # its slots are the emulator's own
NUMPY = {"bfloat16": "uint16", "float16": "float16"}


def scaled_rows(storage: str, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """What the tensor cores are given of a float32 residual."""
    return widened(stored(x * gain, storage))


@STORAGE
@pytest.mark.parametrize("normed", [False, True], ids=["activations", "residual"])
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "begin", "end"),
    [
        (1, 8, 32, 0, 32),
        (8, 8, 160, 0, 160),
        (9, 21, 296, 128, 296),
        (16, 16, 168, 32, 168),
        (3, 13, 72, 64, 72),
        (2, 8, 600, 0, 600),
    ],
)
def test_single_tile(storage: str, normed: bool, rows: int, outputs: int, depth: int, begin: int, end: int) -> None:
    warp = Warp()
    module = gpu_module("tile_gpu", warp)
    residual, gain, weight = floats(1, 2 + rows, depth), floats(2, depth), stored(floats(3, outputs, depth), storage)
    x = residual if normed else stored(residual, storage)
    form = module.SINGLE["float32" if normed else NUMPY[storage], NUMPY[storage]]
    first = outputs - outputs % 8 if outputs % 8 else outputs - 8  # the last tile, whole or not
    partial = np.full(3 * 128, -7, np.float32)
    warp.run(form, RING, partial, np.int32(1), x, gain, np.int32(2), np.int32(rows), weight, np.int32(first), begin, end)
    used = scaled_rows(storage, residual, gain) if normed else widened(x)
    expected = used[2:, begin:end].astype(np.float64) @ widened(weight)[first:, begin:end].T
    found = partial.reshape(3, 16, 8)
    np.testing.assert_allclose(found[1, :rows, : expected.shape[1]], expected, rtol=1e-4, atol=1e-4)
    assert (found[[0, 2]] == -7).all()


@STORAGE
@pytest.mark.parametrize(("rows", "depth"), [(2, 160), (11, 72)])
def test_pair_of_tiles(storage: str, rows: int, depth: int) -> None:
    warp = Warp()
    module = gpu_module("tile_gpu", warp)
    x, gain, weight = floats(4, rows, depth), floats(5, depth), stored(floats(6, 40, depth), storage)
    partial = np.full(4 * 128, -7, np.float32)
    form = module.DOUBLE["float32", NUMPY[storage]]
    rows32 = np.int32(rows)
    warp.run(form, RING, partial, np.int32(2), x, gain, np.int32(0), rows32, weight, np.int32(8), np.int32(32), 0, depth)
    expected = scaled_rows(storage, x, gain).astype(np.float64) @ widened(weight).T
    found = partial.reshape(4, 16, 8)[2:, :rows]
    np.testing.assert_allclose(found[0], expected[:, 8:16], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[:, 32:40], rtol=1e-4, atol=1e-4)


TABLES = np.array([[3, -1, -1, -1], [5, 2, 7, 0]], np.int32)
WIDTH = 64


@STORAGE
@pytest.mark.parametrize(("head_dim", "parts"), [(64, 4), (64, 1), (128, 2), (128, 1)])
@pytest.mark.parametrize(("group", "first_pair", "pairs", "keys"), [(1, 0, 1, 1), (3, 16, 5, 21), (4, 0, 16, 64), (2, 2, 9, 47)])
def test_scores_and_values(
    storage: str, head_dim: int, parts: int, group: int, first_pair: int, pairs: int, keys: int
) -> None:
    """As kernels/attend.py calls them, one warp in the place of two; entries of the cache that were never written are NaN."""
    block_size, kv_heads, start, slabs = 16, 2, 16, head_dim // 64
    k_cache, v_cache = floats(7, 8, block_size, kv_heads, head_dim), floats(8, 8, block_size, kv_heads, head_dim)
    written = (start + np.arange(keys)) % 64
    blocks = np.append(TABLES[1], 1)[(start + np.arange(keys)) // block_size]
    tables = np.array([[3, -1, -1, -1, -1], [*TABLES[1], 1]], np.int32)
    rows = (blocks, written % block_size)
    for cache in (k_cache, v_cache):
        seen = cache[rows].copy()
        cache[...] = np.nan
        cache[rows] = seen
    k_cache, v_cache = stored(k_cache, storage), stored(v_cache, storage)
    query = stored(floats(9, 24, group * kv_heads * head_dim), storage)
    shares = np.zeros((16, WIDTH), np.float32)
    shares[:pairs, :keys] = np.random.default_rng(1).random((pairs, keys))
    shares[pairs:] = np.nan  # rows of absent pairs hold anything
    scores, totals = np.full(16 * WIDTH, np.nan, np.float32), np.full(4 * 16 * 64, -7, np.float32)
    key_ring, value_ring = np.array([1.0]), np.array([2.0])
    where = (tables, np.int32(1), np.int32(1))
    chunk = (np.int32(start), np.int32(keys))
    share_keys, two = np.int32(-(-4 // parts) * 16), np.int32(2)
    kind = NUMPY[storage]

    for turn in (np.int32(0), np.int32(1)):
        warp = Warp()
        module = gpu_module("attend_gpu", warp, tile_gpu=gpu_module("tile_gpu", warp))

        def one_warp(module: Any = module, turn: np.int32 = turn) -> None:
            module.fetch_keys_form(key_ring, k_cache, *where, *chunk, turn, two)
            layout = (np.int32(slabs), np.int32(parts), turn, two)
            module.fetch_values_form(value_ring, v_cache, *where, chunk[0], share_keys, chunk[1], *layout)
            pair = (np.int32(2), np.int32(group), np.int32(first_pair), np.int32(pairs))
            module.SCORES[kind](scores, np.int32(WIDTH), key_ring, query, k_cache, *where, *pair, *chunk, turn, two)
            for unit in range(int(turn), slabs * parts, 2):
                begin = np.int32(unit // slabs * share_keys)
                span = (chunk[0], begin, begin + share_keys, chunk[1], np.int32(unit % slabs * 64))
                held = (np.int32(unit), shares.reshape(-1), np.int32(WIDTH), value_ring, v_cache, *where, pair[3])
                module.VALUES[kind](totals, *held, *span)

        warp.run(one_warp)
    pair = first_pair + np.arange(pairs)
    q = widened(query).reshape(24, -1, head_dim)[2 + pair // group, group + pair % group].astype(np.float64)
    expected = q @ widened(k_cache[(*rows, 1)]).T
    np.testing.assert_allclose(scores.reshape(16, WIDTH)[:pairs, :keys], expected, rtol=1e-4, atol=1e-4)
    found = totals.reshape(4, 16, 64)[: slabs * parts, :pairs].reshape(parts, slabs, pairs, 64).sum(axis=0)
    used = widened(stored(shares, storage))[:pairs, :keys].astype(np.float64)
    attended = (used @ widened(v_cache[(*rows, 1)])).reshape(pairs, slabs, 64)
    np.testing.assert_allclose(found.transpose(1, 0, 2), attended, rtol=1e-4, atol=1e-4)


def test_the_emulator_sees_a_lane_that_loads_its_neighbours_columns() -> None:
    """A warp whose lanes 4 g and 4 g + 1 are confused must not pass: the comparisons above can fail."""
    warp = Warp()
    lane = warp.lane
    warp.lane = lambda: np.int32(lane() ^ 1)  # type: ignore[method-assign]
    module = gpu_module("tile_gpu", warp)
    x, weight = stored(floats(1, 1, 32), "bfloat16"), stored(floats(3, 8, 32), "bfloat16")
    partial = np.zeros(128, np.float32)
    rows = (np.int32(0), np.int32(1))
    warp.run(module.SINGLE["uint16", "uint16"], RING, partial, np.int32(0), x, x, *rows, weight, np.int32(0), 0, 32)
    expected = widened(x) @ widened(weight).T
    assert not np.allclose(partial.reshape(16, 8)[:1], expected, rtol=1e-2)
