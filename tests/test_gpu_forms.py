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


@STORAGE
@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "part", "parts", "slabs"),
    [
        (1, 8, 64, 0, 1, 1),
        (8, 16, 320, 0, 1, 2),
        (7, 21, 584, 1, 2, 2),
        (3, 13, 136, 2, 3, 1),
        (2, 24, 1208, 1, 3, 2),
        (5, 9, 136, 5, 6, 1),  # no column left for this warp
        (4, 8, 712, 0, 1, 1),
    ],
)
def test_products(storage: str, rows: int, outputs: int, depth: int, part: int, parts: int, slabs: int) -> None:
    """Slabs at 8 and at the last rows, whole or not; the columns of one warp among several; twice, the ring is used again."""
    warp = Warp()
    module = gpu_module("tile_gpu", warp)
    x, weight = stored(floats(1, 2 + rows, depth), storage), stored(floats(3, outputs, depth), storage)
    place = [np.int32(8 if outputs > 8 else 0), np.int32(max(outputs - 8, 0) // 8 * 8)]
    shared = [np.int32(value) for value in (part, parts, part, slabs)]
    partial = np.full(parts * slabs * 64, -7, np.float32)

    def twice(*args: Any) -> None:
        form = module.FINISH[NUMPY[storage], NUMPY[storage]]
        module.BEGIN[NUMPY[storage]](RING, weight, *reversed(place), *shared)
        module.ROWS[NUMPY[storage]](RING, x, np.int32(0), *shared)
        form(RING, partial, x, np.int32(0), weight, *reversed(place), *shared)
        module.BEGIN[NUMPY[storage]](RING, weight, *place, *shared)
        module.ROWS[NUMPY[storage]](RING, x, np.int32(2), *shared)
        form(RING, partial, x, np.int32(2), weight, *place, *shared)

    warp.run(twice)
    columns = np.arange(depth)
    own = columns[columns // 64 % parts == part]
    found = partial.reshape(parts, slabs, 8, 8)
    for slab, first in enumerate(place[:slabs]):
        expected = widened(x)[2:, own].astype(np.float64) @ widened(weight)[first : first + 8, own].T
        np.testing.assert_allclose(found[part, slab, :rows, : expected.shape[1]], expected, rtol=1e-4, atol=1e-4)
    assert (np.delete(found, part, axis=0) == -7).all()


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_eight_neighbours(storage: str) -> None:
    """Each column where it belongs, its neighbours untouched, rounded as kernels/lang_storage.py rounds."""
    module, values = gpu_module("lang_eight_gpu", Warp()), floats(5, 3, 24) * 100
    array = stored(values, storage)
    kind = str(array.dtype)
    np.testing.assert_array_equal(module.READ[kind](array, np.int32(2), np.int32(8)), widened(array)[2, 8:16])
    np.testing.assert_array_equal(module.READ_FLAT[kind](array[1], np.int32(16)), widened(array)[1, 16:])
    written = np.zeros_like(array)
    module.WRITE[kind](written, np.int32(1), np.int32(8), tuple(values[1, 8:16]))
    expected = np.zeros_like(array)
    expected[1, 8:16] = array[1, 8:16]
    np.testing.assert_array_equal(written, expected)


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
    x, weight = stored(floats(1, 1, 64), "bfloat16"), stored(floats(3, 8, 64), "bfloat16")
    partial = np.zeros(64, np.float32)
    place, shared = [np.int32(0), np.int32(0)], [np.int32(value) for value in (0, 1, 0, 1)]

    def product() -> None:
        module.BEGIN["uint16"](RING, weight, *place, *shared)
        module.ROWS["uint16"](RING, x, np.int32(0), *shared)
        module.FINISH["uint16", "uint16"](RING, partial, x, np.int32(0), weight, *place, *shared)

    warp.run(product)
    assert not np.allclose(partial.reshape(8, 8)[:1], widened(x) @ widened(weight).T, rtol=1e-2)
