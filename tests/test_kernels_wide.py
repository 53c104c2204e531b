"""Wide products against the oracles of the fused path: each executor and storage type, more rows than are taken at once, pads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.argmax import NO_TOKEN
from kernels.head import best_of_stripes
from kernels.wide_head import wide_argmax
from kernels.wide_project import wide_gate_up, wide_project, wide_residual, wide_residual_tap
from tests.fused_cases import STORAGE, check, out_of, warps, wide_args
from tests.kernel_cases import Launch, untouched
from tests.test_kernels_fused import SCALED, norm_case, residual_case
from tests.test_kernels_head import head_case

LAUNCHES = warps((2, 9), (4, 10))
CLUSTERS = pytest.mark.parametrize("cluster", [1, pytest.param(4, marks=pytest.mark.gpu)])
CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity"),
    [
        (16, 32, 1, 3),
        (200, 24, 3, 5),
        (8, 72, 65, 66),
        (200, 136, 17, 18),
        (24, 456, 64, 64),
        (8, 200, 65, 66),
        (392, 136, 33, 40),
        (8, 40, 0, 2),
    ],
)


def wide_case(launch: Launch, args: dict[str, Any]) -> dict[str, Any]:
    """Without what is of narrow products alone."""
    if launch.executor == "simulator" and args["x"].size * args["weight"].shape[0] > 50_000:
        pytest.skip("thousands of products of a thread that Python runs: smaller cases stand for it")
    return {name: value for name, value in args.items() if name != "parts"}


@LAUNCHES
@STORAGE
@SCALED
@CLUSTERS
@CASES
def test_wide_project(
    launch: Launch, storage: str, scaled: int, cluster: int, outputs: int, depth: int, count: int, capacity: int
) -> None:
    args = norm_case(storage, scaled, outputs, depth, count, capacity, 0, 1)
    expected = {"out": oracle.norm_project(**wide_args(args))}
    check(launch, replace(wide_project, cluster=cluster), wide_case(launch, args), expected, storage)


@LAUNCHES
@STORAGE
@SCALED
@CLUSTERS
@CASES
def test_wide_gate_up(
    launch: Launch, storage: str, scaled: int, cluster: int, outputs: int, depth: int, count: int, capacity: int
) -> None:
    args = norm_case(storage, scaled, 2 * outputs, depth, count, capacity, 0, 1)
    args["out"] = out_of(storage, capacity, outputs)
    expected = {"out": oracle.norm_gate_up(**wide_args(args))}
    check(launch, replace(wide_gate_up, cluster=cluster), wide_case(launch, args), expected, storage)


@LAUNCHES
@STORAGE
@CLUSTERS
@CASES
def test_wide_residual(launch: Launch, storage: str, cluster: int, outputs: int, depth: int, count: int, capacity: int) -> None:
    args = residual_case(storage, outputs, depth, count, capacity, 0)
    residual, normed, squares = oracle.project_residual(**wide_args(args))
    wide = {"residual": residual, "squares": squares}
    check(launch, replace(wide_residual, cluster=cluster), wide_case(launch, args), {"normed": normed}, storage, wide=wide)


@LAUNCHES
@CLUSTERS
@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_wide_residual_to_a_tap(launch: Launch, storage: str, cluster: int) -> None:
    """As without; the columns beside those of the tap are another's."""
    args = {**residual_case(storage, 136, 24, 9, 10, 2), "features": out_of(storage, 10, 160), "column": 8}
    residual, normed, squares, features = oracle.project_residual_tap(**wide_args(args))
    expected, wide = {"normed": normed, "features": features}, {"residual": residual, "squares": squares}
    check(launch, replace(wide_residual_tap, cluster=cluster), wide_case(launch, args), expected, storage, wide=wide)


@LAUNCHES
@STORAGE
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 40, 0), (17, 13, 3), (70, 30, 2), (9, 790, 10)])
def test_wide_head_and_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    """Three stripes, the last of them without a tile where there are less than 385 columns."""
    args = wide_case(launch, head_case(storage, count, vocab_size, padding, 3))
    wide = wide_args(args)
    logits = oracle.project_argmax(wide["logits"], wide["x"], wide["weight"], args["num_rows"])
    held = check(launch, wide_argmax, args, {}, storage, wide={"logits": logits})
    out = untouched(count + 1, dtype=np.int32)
    launch.run(best_of_stripes, out, held["best_value"], held["best_column"], args["num_rows"])
    best = held["logits"][:count, :vocab_size].argmax(axis=1)
    best[1::3] = NO_TOKEN
    np.testing.assert_array_equal(out[:count], best)
    assert out[count] == -7
