"""Products of many rows against their oracles: each executor and storage type, more rows than are taken at once, pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.wide_gate_up import wide_gate_up
from kernels.wide_parts import add_parts, add_parts_tap, wide_parts
from tests.fused_cases import EPS, check, forms, out_of, wide_args
from tests.kernel_cases import Launch, floats, guarded, live, poisoned, untouched
from tests.storage_cases import stored

FORMS = forms((2, 8), (1, 9))
CASES = pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity"),
    [
        (16, 32, 1, 3),
        (104, 24, 3, 5),
        (8, 72, 65, 66),
        (104, 136, 17, 18),
        (104, 40, 16, 16),
        (200, 72, 63, 64),
        (24, 456, 64, 64),
        (8, 1032, 130, 131),
        (200, 136, 33, 40),
        (8, 40, 0, 2),
    ],
)


def operands(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int) -> dict[str, Any]:
    """Rows of x beyond `count` are NaN."""
    if launch.executor == "simulator" and outputs * depth * count > 50_000:
        pytest.skip("hundred thousand products of a thread that Python runs: smaller cases stand for it")
    return {
        "x": stored(poisoned(floats(31, capacity, depth), count), storage),
        "weight": stored(floats(33, outputs, depth) * depth**-0.5, storage),
        "num_tokens": live(count),
    }


@FORMS
@CASES
def test_wide_gate_up(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int) -> None:
    """Tiles that end in their halves, columns that end in a chunk."""
    args = {"out": out_of(storage, capacity, outputs), **operands(launch, storage, 2 * outputs, depth, count, capacity)}
    check(launch, wide_gate_up, args, {"out": oracle.wide_gate_up(**wide_args(args))}, storage)


@FORMS
@pytest.mark.parametrize("parts", [1, 2, 6])
@CASES
def test_wide_parts(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int, parts: int) -> None:
    """Parts without a column leave zeros; behind the last of them nothing is written."""
    args = {"out": untouched(capacity, parts * outputs + 8), "parts": parts}
    args |= operands(launch, storage, outputs, depth, count, capacity)
    expected = oracle.wide_parts(**wide_args({name: args[name] for name in wide_parts.params}))
    check(launch, wide_parts, args, {"out": expected}, storage)


@FORMS
@pytest.mark.parametrize("tapped", [False, True], ids=["", "tap"])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(("columns", "count"), [(24, 3), (2312, 2), (8, 0)])
def test_add_parts(launch: Launch, storage: str, tapped: bool, parts: int, columns: int, count: int) -> None:
    """More columns than threads have eights of at once; sums and features of others beside those of the row."""
    args: dict[str, Any] = {
        "residual": guarded(floats(34, count + 1, columns), count),
        "normed": out_of(storage, count + 1, columns),
        "x": poisoned(floats(35, count + 1, parts * columns + 8), count),
        "gain": floats(37, columns),
        "eps": EPS,
        "parts": parts,
        "num_tokens": live(count),
    }
    args["x"][:, parts * columns :] = np.nan
    if not tapped:
        residual, normed = oracle.add_parts(**wide_args(args))
        check(launch, add_parts, args, {"normed": normed}, storage, wide={"residual": residual})
        return
    args |= {"features": out_of(storage, count + 1, columns + 16), "column": 8}
    residual, normed, features = oracle.add_parts_tap(**wide_args(args))
    check(launch, add_parts_tap, args, {"normed": normed, "features": features}, storage, wide={"residual": residual})
