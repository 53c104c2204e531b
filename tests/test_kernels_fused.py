"""Products of the fused decode path against their oracles: each executor and storage type, ragged requests, pads that show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.add_norm import add_norm, add_norm_tap
from kernels.behind_product import add_squares, norm_swiglu
from kernels.embed_norm import embed_norm
from kernels.embed_squares import embed_squares
from kernels.lang import Kernel
from kernels.project import (
    norm_gate_up,
    norm_project,
    norm_project_two,
    project_residual,
    project_residual_two,
)
from kernels.project_small import norm_gate_up_small, norm_project_small
from kernels.project_tap import project_residual_tap, project_residual_two_tap
from tests.fused_cases import EPS, FORMS, LAUNCHES, check, forms, out_of, residual_case, wide_args
from tests.kernel_cases import Launch, floats, guarded, live, poisoned, untouched
from tests.storage_cases import stored

BEHIND_FORMS = forms(((2, 2), 1), ((1, 3), 2))


@BEHIND_FORMS
@pytest.mark.parametrize("width", [24, 13, 1304])
def test_embed_squares(launch: Launch, storage: str, width: int) -> None:
    args = {
        "residual": untouched(5, width),
        "normed": out_of(storage, 5, width),
        "squares": untouched(5, -(-width // 8)),
        "table": stored(floats(1, 11, width), storage),
        "gain": floats(2, width),
        "input_ids": poisoned(np.array([10, 0, -1, 11, 3], np.int32), 4),
        "num_tokens": live(4),
    }
    residual, normed, squares = oracle.embed_squares(**wide_args(args))
    expected = {"residual": residual, "squares": squares}
    check(launch, embed_squares, args, {"normed": normed}, storage, wide=expected)


@FORMS
@pytest.mark.parametrize("width", [24, 13, 1304])
def test_embed_norm(launch: Launch, storage: str, width: int) -> None:
    args = {
        "residual": untouched(5, width),
        "normed": out_of(storage, 5, width),
        "table": stored(floats(1, 11, width), storage),
        "gain": floats(2, width),
        "input_ids": poisoned(np.array([10, 0, -1, 11, 3], np.int32), 4),
        "eps": EPS,
        "num_tokens": live(4),
    }
    residual, normed = oracle.embed_norm(**wide_args(args))
    check(launch, embed_norm, args, {"normed": normed}, storage, wide={"residual": residual})


def norm_case(
    storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> dict[str, Any]:
    """scaled: x is the norm itself, so that squares must not matter: they are NaN. Rows of x beyond `count` are NaN."""
    rows = floats(31, capacity, depth) * 3
    squares = oracle.squares_of(rows).astype(np.float32)
    return {
        "out": out_of(storage, capacity, outputs),
        "x": stored(poisoned(rows, count), storage),
        "squares": poisoned(np.full_like(squares, np.nan) if scaled else squares, count),
        "weight": stored(floats(33, outputs, depth), storage),
        "eps": EPS,
        "scaled": scaled,
        "parts": parts,
        "num_tokens": live(count),
    }
NORM_CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity", "parts", "slabs"),
    [
        (16, 32, 1, 3, 1, 1),
        (24, 72, 3, 3, 1, 2),
        (13, 40, 17, 18, 2, 2),
        (8, 200, 8, 9, 2, 1),
        (16, 456, 9, 9, 4, 1),
        (72, 136, 2, 8, 3, 2),
        (8, 40, 0, 2, 1, 1),
    ],
)
SCALED = pytest.mark.parametrize("scaled", [0, 1], ids=["squares", "scaled"])


@FORMS
@SCALED
@NORM_CASES
def test_norm_project(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = norm_case(storage, scaled, outputs, depth, count, capacity, parts, slabs)
    for kernel in (norm_project,) if slabs == 1 else (norm_project_two, norm_project_small):
        check(launch, kernel, args, {"out": oracle.norm_project(**wide_args(args))}, storage)


@FORMS
@SCALED
@NORM_CASES
def test_norm_gate_up(
    launch: Launch, storage: str, scaled: int, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = norm_case(storage, scaled, 2 * outputs, depth, count, capacity, parts, slabs)
    args["out"] = out_of(storage, capacity, outputs)
    for kernel in (norm_gate_up, norm_gate_up_small):
        check(launch, kernel, args, {"out": oracle.norm_gate_up(**wide_args(args))}, storage)


@FORMS
@NORM_CASES
def test_project_residual(
    launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int, slabs: int
) -> None:
    args = residual_case(storage, outputs, depth, count, capacity, parts)
    kernel = project_residual if slabs == 1 else project_residual_two
    residual, normed, squares = oracle.project_residual(**wide_args(args))
    check(launch, kernel, args, {"normed": normed}, storage, wide={"residual": residual, "squares": squares})


@LAUNCHES
@pytest.mark.parametrize(("storage", "slabs"), [("bfloat16", 1), ("float32", 2)])
def test_project_residual_to_a_tap(launch: Launch, storage: str, slabs: int) -> None:
    """As without; the columns beside those of the tap are another's."""
    args = {**residual_case(storage, 20, 24, 9, 10, 2), "features": out_of(storage, 10, 27), "column": 3}
    kernel = project_residual_tap if slabs == 1 else project_residual_two_tap
    residual, normed, squares, features = oracle.project_residual_tap(**wide_args(args))
    check(launch, kernel, args, {"normed": normed, "features": features}, storage, wide={"residual": residual, "squares": squares})
BEHIND = pytest.mark.parametrize(
    ("columns", "count", "capacity"), [(24, 2, 3), (13, 3, 3), (576, 1, 2), (1304, 5, 6), (8, 0, 2)], ids=str
)


@BEHIND_FORMS
@SCALED
@BEHIND
def test_norm_swiglu(launch: Launch, storage: str, scaled: int, columns: int, count: int, capacity: int) -> None:
    """The residual has another width than the activation: each has its own tail."""
    width = columns // 2 + 1
    squares = oracle.squares_of(floats(51, capacity, width) * 3).astype(np.float32)
    args = {
        "out": out_of(storage, capacity, columns),
        "gate_up": poisoned(floats(52, capacity, 2 * columns) * 4, count),
        "squares": poisoned(np.full_like(squares, np.nan) if scaled else squares, count),
        "width": width,
        "eps": EPS,
        "scaled": scaled,
        "num_tokens": live(count),
    }
    check(launch, norm_swiglu, args, {"out": oracle.norm_swiglu(**wide_args(args))}, storage)


@BEHIND_FORMS
@BEHIND
def test_add_squares(launch: Launch, storage: str, columns: int, count: int, capacity: int) -> None:
    args = {
        "residual": guarded(floats(53, capacity, columns), count),
        "normed": out_of(storage, capacity, columns),
        "squares": untouched(capacity, -(-columns // 8)),
        "x": poisoned(floats(54, capacity, columns), count),
        "gain": floats(55, columns),
        "num_tokens": live(count),
    }
    residual, normed, squares = oracle.add_squares(**wide_args(args))
    check(launch, add_squares, args, {"normed": normed}, storage, wide={"residual": residual, "squares": squares})


@FORMS
@BEHIND
def test_add_norm(launch: Launch, storage: str, columns: int, count: int, capacity: int) -> None:
    """With a tap and without; the columns beside those of the tap are another's."""
    args = {
        "residual": guarded(floats(56, capacity, columns), count),
        "normed": out_of(storage, capacity, columns),
        "x": poisoned(floats(57, capacity, columns), count),
        "gain": floats(58, columns),
        "eps": EPS,
        "num_tokens": live(count),
    }
    residual, normed = oracle.add_norm(**wide_args(args))
    check(launch, add_norm, args, {"normed": normed}, storage, wide={"residual": residual})
    tapped = args | {"features": out_of(storage, capacity, 3 * columns), "column": columns}
    residual, normed, features = oracle.add_norm_tap(**wide_args(tapped))
    check(launch, add_norm_tap, tapped, {"normed": normed, "features": features}, storage, wide={"residual": residual})


@forms((2, 4), (1, 10))
@pytest.mark.parametrize("kernel", [norm_project, norm_project_two, norm_gate_up], ids=lambda kernel: kernel.name)
def test_a_row_of_a_product_does_not_depend_on_its_company(launch: Launch, kernel: Kernel, storage: str) -> None:
    """Bit for bit: alone, among eight, and as the ninth."""
    if launch.executor == "simulator":
        pytest.skip("slow in the simulator, which adds up as the CPU does")
    many = norm_case(storage, 0, 80, 456, 9, 9, 3, 1)
    many["out"] = out_of(storage, 9, 40) if kernel is norm_gate_up else many["out"]
    launch.run(kernel, *(many[name] for name in kernel.params))
    for row in (0, 3, 7, 8):
        alone = norm_case(storage, 0, 80, 456, 1, 1, 3, 2)
        alone["out"] = out_of(storage, 1, many["out"].shape[1])
        alone["x"], alone["squares"] = many["x"][row : row + 1].copy(), many["squares"][row : row + 1].copy()
        launch.run(kernel, *(alone[name] for name in kernel.params))
        assert alone["out"].tobytes() == many["out"][row].tobytes()
