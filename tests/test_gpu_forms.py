"""The GPU forms of the products, from their own source in an emulated warp: lanes, fragments, tails, clamps, alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulated_module import gpu_module
from tests.kernel_cases import floats
from tests.storage_cases import stored, widened
from tests.warp_emulator import Warp

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
    weights = [*shared, np.int32(slabs - 1)]
    partial = np.full(parts * slabs * 64, -7, np.float32)

    def twice(*args: Any) -> None:
        form = module.FINISH[NUMPY[storage], NUMPY[storage]]
        module.BEGIN[NUMPY[storage]](RING, weight, *reversed(place), *weights)
        module.ROWS[NUMPY[storage]](RING, x, np.int32(0), *shared)
        form(RING, partial, x, np.int32(0), weight, *reversed(place), *weights)
        module.BEGIN[NUMPY[storage]](RING, weight, *place, *weights)
        module.ROWS[NUMPY[storage]](RING, x, np.int32(2), *shared)
        form(RING, partial, x, np.int32(2), weight, *place, *weights)

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
        module.BEGIN["uint16"](RING, weight, *place, *shared, np.int32(0))
        module.ROWS["uint16"](RING, x, np.int32(0), *shared)
        module.FINISH["uint16", "uint16"](RING, partial, x, np.int32(0), weight, *place, *shared, np.int32(0))

    warp.run(product)
    assert not np.allclose(partial.reshape(8, 8)[:1], widened(x) @ widened(weight).T, rtol=1e-2)
