"""The head of many rows against its oracle: each executor and storage type, rows of several passes, tiles of several stripes."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.wide_head import wide_head
from kernels.wide_shape import HEIGHT
from tests.fused_cases import check, forms
from tests.head_cases import check_head, head_case
from tests.kernel_cases import Launch, live, poisoned

FORMS = forms((2, 8), (1, 9))


@FORMS
@pytest.mark.parametrize(
    ("count", "vocab_size", "padding", "depth", "stripes"),
    [(1, 21, 3, 8, 3), (17, 13, 3, 72, 1), (9, 400, 0, 136, 2), (64, 590, 2, 200, 1), (70, 1000, 8, 456, 3), (0, 40, 0, 64, 2)],
)
def test_head_and_best_columns(
    launch: Launch, storage: str, count: int, vocab_size: int, padding: int, depth: int, stripes: int
) -> None:
    """Fewer chunks of columns than are under way at once, and more; tiles that end early; more rows than are multiplied at once."""
    if launch.executor == "simulator" and count > 17:
        pytest.skip("slow in the simulator")
    check_head(launch, wide_head, head_case(storage, count, vocab_size, padding, depth, stripes), storage)


@FORMS
def test_a_stripe_is_every_so_manieth_tile(launch: Launch, storage: str) -> None:
    """What is largest in a tile is the best of the stripe that has it; a stripe without a tile has none."""
    if launch.executor == "simulator":
        pytest.skip("slow in the simulator")
    stripes, tiles = 4, 3
    args = head_case(storage, 3, tiles * HEIGHT - 8, 8, 64, stripes)
    args["x"] = poisoned(np.ones_like(args["x"]), 3) if storage == "float32" else args["x"]
    held = check(launch, wide_head, args, {}, storage, wide={})
    logits = held["logits"][0, : args["vocab_size"]]
    for stripe in range(tiles):
        first = stripe * HEIGHT
        assert held["best_column"][stripe, 0] == first + logits[first : first + HEIGHT].argmax()
        assert held["best_value"][stripe, 0] == logits[first : first + HEIGHT].max()
    assert held["best_value"][tiles, 0] == -np.inf
    assert held["num_rows"] == live(3)
