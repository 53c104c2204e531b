"""Matrix products of a CPU against float64, for every way that a number of rows takes."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.cpu_matmul import FEW_ROWS, multiply, prepare
from graphs.executor import bind_matmul


@pytest.mark.parametrize("outputs", [1, 2, 7, 64])
@pytest.mark.parametrize("depth", [1, 5, 33, 576])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, FEW_ROWS.stop - 1, FEW_ROWS.stop])
def test_products_of_any_number_of_rows(rows: int, depth: int, outputs: int) -> None:
    random = np.random.default_rng([rows, depth, outputs])
    x, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (outputs, depth)))
    weight.flags.writeable = False  # as constants on a device are
    out = np.full((rows, outputs), np.nan, np.float32)
    prepare(out, x, weight)
    multiply(out, x, weight)
    np.testing.assert_allclose(out, x.astype(np.float64) @ weight.T.astype(np.float64), rtol=1e-5, atol=1e-5 * depth**0.5)


def test_pads_are_left_alone_and_a_wrong_count_is_refused() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    weight, out, rows = np.eye(3, dtype=np.float32), np.full((4, 3), -7, np.float32), np.array([2], np.int32)
    call = bind_matmul(out, x, weight, rows)
    call()
    np.testing.assert_array_equal(out[:2], x[:2])
    assert (out[2:] == -7).all()
    rows[0] = 5
    with pytest.raises(ValueError, match=r"rows = 5 outside 0\.\.4"):
        call()
