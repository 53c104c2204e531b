"""Products whose weights flow, against the oracles of the others: each executor and storage type, ragged shapes, pads that show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.flow_head import flow_argmax
from kernels.flow_project import flow_gate_up, flow_project
from kernels.flow_residual import flow_residual, flow_residual_tap
from kernels.lang import Kernel
from kernels.slab_gate_up import slab_gate_up
from tests.fused_cases import EPS, FORMS, LAUNCHES, check, out_of, residual_case, wide_args
from tests.head_cases import check_head, head_case
from tests.kernel_cases import Launch, floats, live, poisoned
from tests.storage_cases import stored

CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity", "parts"),
    [
        (16, 64, 1, 3, 1),
        (24, 512, 3, 3, 1),  # all that a warp can hold
        (13, 128, 17, 18, 2),  # rows beyond eight, outputs of no whole slab
        (8, 256, 8, 9, 2),
        (40, 576, 9, 9, 3),
        (200, 192, 4, 8, 1),  # many tiles through each ring
        (100, 1088, 3, 3, 3),  # the last warp has fewer columns
        (24, 192, 5, 6, 2),
        (8, 64, 0, 2, 1),
    ],
)
SCALED = pytest.mark.parametrize("scaled", [0, 1], ids=["squares", "scaled"])


def flow_case(storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int) -> dict[str, Any]:
    """scaled: x is the norm itself, so that squares must not matter: they are NaN. Rows of x beyond `count` are NaN."""
    rows = floats(61, capacity, depth) * 3
    squares = oracle.squares_of(rows).astype(np.float32)
    return {
        "out": out_of(storage, capacity, outputs),
        "x": stored(poisoned(rows, count), storage),
        "squares": poisoned(np.full_like(squares, np.nan) if scaled else squares, count),
        "weight": stored(floats(63, outputs, depth), storage),
        "eps": EPS,
        "scaled": scaled,
        "parts": parts,
        "num_tokens": live(count),
    }


@FORMS
@SCALED
@CASES
def test_flow_project(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int
) -> None:
    args = flow_case(storage, scaled, outputs, depth, count, capacity, parts)
    check(launch, flow_project, args, {"out": oracle.norm_project(**wide_args(args))}, storage)


@FORMS
@CASES
@pytest.mark.parametrize("kernel", [flow_gate_up, slab_gate_up], ids=lambda kernel: kernel.name)
def test_gate_up(
    launch: Launch, storage: str, kernel: Kernel, outputs: int, depth: int, count: int, capacity: int, parts: int
) -> None:
    args = flow_case(storage, 0, 2 * outputs, depth, count, capacity, parts)
    args["out"] = out_of(storage, capacity, outputs)
    check(launch, kernel, args, {"out": oracle.norm_gate_up(**wide_args(args))}, storage)


@FORMS
@CASES
def test_flow_residual(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int) -> None:
    args = residual_case(storage, outputs, depth, count, capacity, parts)
    residual, normed, squares = oracle.project_residual(**wide_args(args))
    check(launch, flow_residual, args, {"normed": normed}, storage, wide={"residual": residual, "squares": squares})


@LAUNCHES
@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_flow_residual_to_a_tap(launch: Launch, storage: str) -> None:
    """As without; the columns beside those of the tap are another's."""
    args = {**residual_case(storage, 20, 128, 9, 10, 2), "features": out_of(storage, 10, 27), "column": 3}
    residual, normed, squares, features = oracle.project_residual_tap(**wide_args(args))
    wide = {"residual": residual, "squares": squares}
    check(launch, flow_residual_tap, args, {"normed": normed, "features": features}, storage, wide)


@FORMS
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 140, 0), (17, 13, 8), (9, 60, 4)])
def test_flow_argmax(launch: Launch, storage: str, parts: int, count: int, vocab_size: int, padding: int) -> None:
    args = head_case(storage, count, vocab_size, padding, 128) | {"parts": parts}
    check_head(launch, flow_argmax, args, storage)
