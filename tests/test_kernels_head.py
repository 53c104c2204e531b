"""The end of the fused decode path against its oracles: rows that are wanted, their norm, the head, its best columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_fused as oracle
from kernels.argmax import NO_TOKEN
from kernels.head import best_of_stripes, gather_norm, project_argmax
from tests.fused_cases import EPS, LAUNCHES, STORAGE, check, out_of, wide_args
from tests.kernel_cases import Launch, floats, live, poisoned, untouched
from tests.storage_cases import STORAGES, dtype_of, stored


@LAUNCHES
@STORAGE
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


def head_case(storage: str, count: int, vocab_size: int, padding: int, stripes: int) -> dict[str, Any]:
    weight = floats(47, vocab_size + padding, 64)
    weight[vocab_size:] *= 1000  # the padding would win
    weight[[3, vocab_size - 1]] = weight[3] * 4  # ties between columns of different stripes
    rows = floats(48, count + 1, 64)
    rows[1:count:3, 5] = np.nan  # and so every logit
    rows[2:count:3, 5] = -np.inf
    weight[:, 5] = abs(weight[:, 5])
    return {
        "logits": untouched(count + 1, vocab_size + padding),
        "best_value": untouched(stripes, count + 1),
        "best_column": untouched(stripes, count + 1, dtype=np.int32),
        "x": stored(poisoned(rows, count), storage),
        "weight": stored(weight, storage),
        "vocab_size": vocab_size,
        "num_rows": live(count),
    }


@LAUNCHES
@STORAGE
@pytest.mark.parametrize(("count", "vocab_size", "padding"), [(1, 21, 3), (3, 40, 0), (17, 13, 8), (9, 60, 4), (70, 30, 2)])
def test_head_and_argmax(launch: Launch, storage: str, count: int, vocab_size: int, padding: int) -> None:
    args = head_case(storage, count, vocab_size, padding, 3)
    wide = wide_args(args)
    logits = oracle.project_argmax(wide["logits"], wide["x"], wide["weight"], args["num_rows"])
    held = check(launch, project_argmax, args, {}, storage, wide={"logits": logits})
    out = untouched(count + 1, dtype=np.int32)
    launch.run(best_of_stripes, out, held["best_value"], held["best_column"], args["num_rows"])
    best = held["logits"][:count, :vocab_size].argmax(axis=1)
    best[1::3] = best[2::3] = NO_TOKEN
    np.testing.assert_array_equal(out[:count], best)
    assert out[count] == -7


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
