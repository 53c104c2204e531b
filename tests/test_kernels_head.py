"""The end of the fused decode path against its oracles: rows that are wanted, their norm, the head, its best columns."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.head import best_of_stripes, gather_norm, project_argmax
from tests.fused_cases import EPS, FORMS, LAUNCHES, check, out_of, wide_args
from tests.head_cases import check_head, head_case
from tests.kernel_cases import Launch, floats, live, untouched
from tests.storage_cases import STORAGES, dtype_of


@FORMS
@pytest.mark.parametrize("width", [8, 24, 13, 800])
def test_gather_norm(launch: Launch, storage: str, width: int) -> None:
    args = {
        "out": out_of(storage, 4, width),
        "residual": floats(45, 6, width),
        "gain": floats(46, width),
        "indices": np.array([5, 0, 5, 2], np.int32),
        "eps": EPS,
        "num_rows": live(3),
    }
    check(launch, gather_norm, args, {"out": oracle.gather_norm(**wide_args(args))}, storage)


@FORMS
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 40, 0), (17, 13, 8), (9, 60, 4), (70, 30, 2)])
def test_head_and_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    check_head(launch, project_argmax, head_case(storage, count, vocab_size, padding, 64), storage)


@LAUNCHES
def test_best_of_stripes(launch: Launch) -> None:
    inf = np.inf
    values = np.array([[1, 5, -inf, inf], [2, 5, -inf, -inf], [0, 4, -inf, 1]], np.float32)
    columns = np.array([[4, 9, 2**31 - 1, 3], [7, 2, 2**31 - 1, 2**31 - 1], [1, 1, 2**31 - 1, 0]], np.int32)
    out = untouched(5, dtype=np.int32)
    values, columns = np.pad(values, ((0, 0), (0, 1))), np.pad(columns, ((0, 0), (0, 1)))
    expected = oracle.best_of_stripes(out, values, columns, live(4))
    args = {"out": out, "best_value": values, "best_column": columns, "num_rows": live(4)}
    launch.check(best_of_stripes, args, {"out": expected})
    assert expected.tolist() == [7, 2, -1, 3, -7]


def test_storage_of_a_kernel_is_that_of_its_arrays() -> None:
    assert [str(dtype_of(storage)) for storage in STORAGES] == ["float32", "float16", "uint16"]
