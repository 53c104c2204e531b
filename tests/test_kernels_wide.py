"""Gate and up of many rows against their oracle: each executor and storage type, more rows than are taken at once, pads."""

from __future__ import annotations

import pytest

from kernels import oracle_fused as oracle
from kernels.wide_gate_up import wide_gate_up
from tests.fused_cases import STORAGE, check, out_of, warps, wide_args
from tests.kernel_cases import Launch, floats, live, poisoned
from tests.storage_cases import stored


@warps((2, 8), (1, 9))
@STORAGE
@pytest.mark.parametrize(
    ("outputs", "depth", "count", "capacity"),
    [
        (16, 32, 1, 3),
        (104, 24, 3, 5),
        (8, 72, 65, 66),
        (104, 136, 17, 18),
        (24, 456, 64, 64),
        (8, 520, 130, 131),
        (200, 136, 33, 40),
        (8, 40, 0, 2),
    ],
)
def test_wide_gate_up(launch: Launch, storage: str, outputs: int, depth: int, count: int, capacity: int) -> None:
    """Tiles that end in their halves, columns that end in a chunk, rows of x beyond `count` that are NaN."""
    if launch.executor == "simulator" and outputs * depth * count > 50_000:
        pytest.skip("hundred thousand products of a thread that Python runs: smaller cases stand for it")
    args = {
        "out": out_of(storage, capacity, outputs),
        "x": stored(poisoned(floats(31, capacity, depth), count), storage),
        "weight": stored(floats(33, 2 * outputs, depth) * depth**-0.5, storage),
        "num_tokens": live(count),
    }
    check(launch, wide_gate_up, args, {"out": oracle.wide_gate_up(**wide_args(args))}, storage)
