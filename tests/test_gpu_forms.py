"""The GPU forms of the products, from their own source in an emulated warp: lanes, fragments, tails, clamps, alignment."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp, gpu_module

STORAGE = pytest.mark.parametrize("storage", ["bfloat16", "float16"])
NUMPY = {"bfloat16": "uint16", "float16": "float16"}


def scaled_rows(storage: str, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """What the tensor cores are given of a float32 residual."""
    return widened(stored(x * gain, storage))


@STORAGE
@pytest.mark.parametrize("normed", [False, True], ids=["activations", "residual"])
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "begin", "end"),
    [(1, 8, 32, 0, 32), (8, 8, 160, 0, 160), (9, 21, 296, 128, 296), (16, 16, 168, 32, 168), (3, 13, 72, 64, 72)],
)
def test_single_tile(storage: str, normed: bool, rows: int, outputs: int, depth: int, begin: int, end: int) -> None:
    warp = Warp()
    module = gpu_module("tile_gpu", warp)
    residual, gain, weight = floats(1, 2 + rows, depth), floats(2, depth), stored(floats(3, outputs, depth), storage)
    x = residual if normed else stored(residual, storage)
    form = module.SINGLE["float32" if normed else NUMPY[storage], NUMPY[storage]]
    first = outputs - outputs % 8 if outputs % 8 else outputs - 8  # the last tile, whole or not
    partial = np.full(3 * 128, -7, np.float32)
    warp.run(form, partial, np.int32(1), x, gain, np.int32(2), np.int32(rows), weight, np.int32(first), begin, end)
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
    warp.run(form, partial, np.int32(2), x, gain, np.int32(0), rows32, weight, np.int32(8), np.int32(32), 0, depth)
    expected = scaled_rows(storage, x, gain).astype(np.float64) @ widened(weight).T
    found = partial.reshape(4, 16, 8)[2:, :rows]
    np.testing.assert_allclose(found[0], expected[:, 8:16], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[:, 32:40], rtol=1e-4, atol=1e-4)


TABLES = np.array([[3, -1, -1, -1], [5, 2, 7, 0]], np.int32)


@STORAGE
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("group", "first_pair", "pairs", "keys"), [(1, 0, 1, 1), (3, 16, 5, 21), (4, 0, 16, 16), (2, 2, 9, 30)])
def test_scores_and_values(storage: str, head_dim: int, group: int, first_pair: int, pairs: int, keys: int) -> None:
    """Two units with half the keys each, the second slab of a long head; entries that were never written are NaN."""
    warp = Warp()
    tile = gpu_module("tile_gpu", warp)
    module = gpu_module("attend_gpu", warp, tile_gpu=tile)
    block_size, kv_heads, start, width = 16, 2, 16, 128
    k_cache, v_cache = floats(7, 8, block_size, kv_heads, head_dim), floats(8, 8, block_size, kv_heads, head_dim)
    positions = start + np.arange(width)
    written = positions[:keys]
    for cache in (k_cache, v_cache):
        seen = cache[TABLES[1, written // block_size], written % block_size].copy()
        cache[...] = np.nan
        cache[TABLES[1, written // block_size], written % block_size] = seen
    k_cache, v_cache = stored(k_cache, storage), stored(v_cache, storage)
    query = stored(floats(9, 24, group * kv_heads * head_dim), storage)
    scores = np.full(16 * width, np.nan, np.float32)
    one = np.int32(1)
    for turn in (0, 1):  # two warps share the keys
        warp.run(
            module.SCORES[NUMPY[storage]], scores, np.int32(width), query, k_cache, TABLES, one, one, np.int32(2),
            np.int32(group), np.int32(first_pair), np.int32(pairs), np.int32(start), np.int32(keys), np.int32(turn), np.int32(2),
        )  # fmt: skip
    pair = first_pair + np.arange(pairs)
    q = widened(query).reshape(24, -1, head_dim)[2 + pair // group, group + pair % group].astype(np.float64)
    rows = (TABLES[1, written // block_size], written % block_size, 1)
    expected = q @ widened(k_cache[rows]).T
    np.testing.assert_allclose(scores.reshape(16, width)[:pairs, :keys], expected, rtol=1e-4, atol=1e-4)

    shares = np.zeros((16, width), np.float32)
    shares[:pairs, :keys] = np.random.default_rng(1).random((pairs, keys))
    shares[pairs:] = np.nan  # rows of absent pairs hold anything
    totals = np.full(2 * 16 * 64, -7, np.float32)
    dim, rounded = head_dim - 64, -(-keys // 16) * 16
    for unit, (begin, end) in enumerate(((0, 16), (16, rounded))):
        warp.run(
            module.VALUES[NUMPY[storage]], totals, np.int32(unit), shares.reshape(-1), np.int32(width), v_cache, TABLES, one, one,
            np.int32(pairs), np.int32(start), np.int32(begin), np.int32(end), np.int32(keys), np.int32(dim),
        )  # fmt: skip
    found = totals.reshape(2, 16, 64)[:, :pairs].sum(axis=0)
    used = widened(stored(shares, storage))[:pairs, :keys].astype(np.float64)
    np.testing.assert_allclose(found, used @ widened(v_cache[rows])[:, dim:], rtol=1e-4, atol=1e-4)


def test_the_emulator_sees_a_lane_that_loads_its_neighbours_columns() -> None:
    """A warp whose lanes 4 g and 4 g + 1 are confused must not pass: the comparisons above can fail."""
    warp = Warp()
    lane = warp.lane
    warp.lane = lambda: np.int32(lane() ^ 1)  # type: ignore[method-assign]
    module = gpu_module("tile_gpu", warp)
    x, weight = stored(floats(1, 1, 32), "bfloat16"), stored(floats(3, 8, 32), "bfloat16")
    partial = np.zeros(128, np.float32)
    warp.run(module.SINGLE["uint16", "uint16"], partial, np.int32(0), x, x, np.int32(0), np.int32(1), weight, np.int32(0), 0, 32)
    expected = widened(x) @ widened(weight).T
    assert not np.allclose(partial.reshape(16, 8)[:1], expected, rtol=1e-2)
