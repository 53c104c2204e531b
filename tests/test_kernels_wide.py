"""Wide products against the oracles of the fused path: each executor and storage type, more rows than are taken at once, pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.argmax import NO_TOKEN
from kernels.head import best_of_stripes
from kernels.lang import Kernel
from kernels.wide_head import wide_argmax
from kernels.wide_project import HIGH, wide_gate_up, wide_project, wide_residual, wide_residual_tap
from kernels.wide_tile import WIDE_TOKENS
from tests.fused_cases import STORAGE, check, out_of, warps, wide_args
from tests.kernel_cases import Launch, untouched
from tests.test_kernels_fused import SCALED, norm_case, residual_case
from tests.test_kernels_head import head_case

LAUNCHES = warps((2, 9), (16, 10))
"""On a GPU a block takes all parts of a tile, and all blocks share the tiles."""

CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity", "parts"),
    [
        (16, 32, 1, 3, 1),
        (200, 24, 3, 5, 2),
        (8, 72, 65, 66, 1),
        (200, 136, 17, 18, 4),
        (24, 456, 64, 64, 4),
        (8, 520, 130, 131, 2),
        (392, 136, 33, 40, 4),
        (8, 40, 0, 2, 4),
    ],
)


def check_wide(
    launch: Launch, kernel: Kernel, args: dict[str, Any], expected: dict[str, np.ndarray], storage: str, **wide: np.ndarray
) -> None:
    """Twice, because what parts left for each other is still there the second time; arrivals of any launches before."""
    if launch.executor == "simulator" and args["x"].size * args["weight"].shape[0] > 50_000:
        pytest.skip("thousands of products of a thread that Python runs: smaller cases stand for it")
    blocks, before = 16, np.full(16, -8, np.int32)
    exchange: dict[str, Any] = {"partial": untouched(blocks, WIDE_TOKENS * HIGH), "arrivals": before}
    for _ in range(1 if "residual" in kernel.writes else 2):
        held = check(launch, kernel, args | exchange, expected, storage, wide=wide)
        exchange = {name: held[name] for name in exchange}
    assert (exchange["arrivals"] % args["parts"] == 0).all()
    if launch.executor != "cuda" or storage == "float32":
        assert (exchange["arrivals"] == before).all(), "nothing is shared where sums are computed when they are asked for"


@LAUNCHES
@STORAGE
@SCALED
@CASES
def test_wide_project(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int
) -> None:
    args = norm_case(storage, scaled, outputs, depth, count, capacity, parts, 1)
    check_wide(launch, wide_project, args, {"out": oracle.norm_project(**wide_args(args))}, storage)


@LAUNCHES
@STORAGE
@SCALED
@CASES
def test_wide_gate_up(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int
) -> None:
    args = norm_case(storage, scaled, 2 * outputs, depth, count, capacity, parts, 1)
    args["out"] = out_of(storage, capacity, outputs)
    check_wide(launch, wide_gate_up, args, {"out": oracle.norm_gate_up(**wide_args(args))}, storage)


@LAUNCHES
@STORAGE
@CASES
def test_wide_residual(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int) -> None:
    args = residual_case(storage, outputs, depth, count, capacity, parts)
    residual, normed, squares = oracle.project_residual(**wide_args(args))
    check_wide(launch, wide_residual, args, {"normed": normed}, storage, residual=residual, squares=squares)


@LAUNCHES
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_wide_residual_to_a_tap(launch: Launch, storage: str, parts: int) -> None:
    """As without; the columns beside those of the tap are another's."""
    args = {**residual_case(storage, 136, 24, 9, 10, parts), "features": out_of(storage, 10, 160), "column": 8}
    residual, normed, squares, features = oracle.project_residual_tap(**wide_args(args))
    expected = {"normed": normed, "features": features}
    check_wide(launch, wide_residual_tap, args, expected, storage, residual=residual, squares=squares)


@LAUNCHES
@STORAGE
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 40, 0), (17, 13, 3), (70, 30, 2), (9, 790, 10)])
def test_wide_head_and_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    """Three stripes, the last of them without a tile where there are less than 385 columns."""
    args = head_case(storage, count, vocab_size, padding, 3)
    if launch.executor == "simulator" and vocab_size > 100:
        pytest.skip("thousands of products of a thread that Python runs: smaller cases stand for it")
    wide = wide_args(args)
    logits = oracle.project_argmax(wide["logits"], wide["x"], wide["weight"], args["num_rows"])
    held = check(launch, wide_argmax, args, {}, storage, wide={"logits": logits})
    out = untouched(count + 1, dtype=np.int32)
    launch.run(best_of_stripes, out, held["best_value"], held["best_column"], args["num_rows"])
    best = held["logits"][:count, :vocab_size].argmax(axis=1)
    best[1::3] = best[2::3] = NO_TOKEN
    np.testing.assert_array_equal(out[:count], best)
    assert out[count] == -7
