"""Argmax and exp against their oracles: ties, NaN, infinities, padding, tiles and stripes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import oracle_forward as oracle
from kernels import oracle_fused
from kernels.argmax import NO_TOKEN, argmax, stripe_argmax
from kernels.exponential import exp
from kernels.head import best_of_stripes
from kernels.lang import cuda, kernel
from tests.fused_cases import warps
from tests.kernel_cases import Launch, floats, launches, live, poisoned, untouched


def logits_rows(width: int) -> np.ndarray:
    """Rows that argmax has been known to get wrong, vocabulary `width` (at least 5)."""
    nan, inf = np.nan, np.inf
    plain = floats(22, 1, width)[0]
    rows = np.stack([plain] * 14)
    rows[1] = 0.0  # all equal: the lowest index
    rows[2, [1, width - 1]] = 50.0  # a tie between the second column and the last
    rows[3] = nan
    rows[4] = -inf
    rows[5, 0], rows[5, 3] = nan, 60.0
    rows[6] = nan
    rows[6, width - 1] = -1.0  # one number among NaN
    rows[7, [2, 4]] = inf
    rows[8] = -5.0
    rows[8, 2], rows[8, 4] = -0.0, 0.0  # equal numbers with different bits
    rows[9] = -abs(plain) - 1.0
    rows[10] = np.where(np.arange(width) % 2, -inf, nan)
    rows[11] = -nan  # a NaN with the sign bit: below -inf by its bits
    rows[11, width - 2] = -inf
    rows[12] = nan
    rows[12, width - 1] = inf  # the largest there is, not nothing
    rows[13] = -inf
    rows[13, 1] = np.finfo(np.float32).min
    return rows


def argmax_case(vocab_size: int, padding: int, count: int) -> dict:
    logits = np.full((14, vocab_size + padding), 1e9, np.float32)  # the padding would win
    logits[:, :vocab_size] = logits_rows(vocab_size)
    return {
        "out": untouched(14, dtype=np.int32),
        "logits": poisoned(logits, count),
        "vocab_size": vocab_size,
        "num_rows": live(count),
    }


@launches((1, 1), (3, 3), (14, 5), (1, 32))
@pytest.mark.parametrize(("vocab_size", "padding"), [(5, 0), (67, 3)])
@pytest.mark.parametrize("count", [0, 7, 14])
def test_argmax(launch: Launch, vocab_size: int, padding: int, count: int) -> None:
    args = argmax_case(vocab_size, padding, count)
    launch.check(argmax, args, {"out": oracle.argmax(**args)})


@launches((2, 64))
@pytest.mark.parametrize("vocab_size", [511, 512, 513, 1024])
def test_argmax_at_the_border_of_a_tile(launch: Launch, vocab_size: int) -> None:
    args = argmax_case(vocab_size, 5, 14)
    launch.check(argmax, args, {"out": oracle.argmax(**args)})


@warps(((14, 1), 1), ((3, 2), 3), ((14, 5), 2))
@pytest.mark.parametrize(
    ("vocab_size", "padding", "stripes"), [(5, 0, 1), (67, 3, 4), (67, 0, 9), (5, 2, 8), (67, 5, 4), (96, 0, 3), (800, 8, 2)]
)
@pytest.mark.parametrize("count", [0, 7, 14])
def test_argmax_in_stripes(launch: Launch, vocab_size: int, padding: int, stripes: int, count: int) -> None:
    args = argmax_case(vocab_size, padding, count)
    best = {"best_value": untouched(stripes, 14), "best_column": untouched(stripes, 14, dtype=np.int32)}
    parts = best | {name: args[name] for name in ("logits", "vocab_size", "num_rows")}
    value, column = oracle.stripe_argmax(**parts)
    launch.check(stripe_argmax, parts, {"best_value": value, "best_column": column})
    # What kernels/head.best_of_stripes makes of the parts is the argmax of the whole row.
    combined = oracle_fused.best_of_stripes(args["out"], value, column, live(count))
    np.testing.assert_array_equal(combined, oracle.argmax(**args))


SPECIAL = [np.nan, -np.inf, np.inf, 0.0, -0.0, float(np.finfo(np.float32).min), 1.0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.sampled_from(SPECIAL[:2]) | st.sampled_from(SPECIAL), min_size=11, max_size=11), min_size=1, max_size=5),
    st.integers(1, 11),
    st.integers(1, 3),
)
def test_no_token_is_that_of_rows_with_nothing_above_minus_infinity(rows: list[list[float]], vocab_size: int, stripes: int) -> None:
    """Both forms, whatever stands in the padding."""
    logits, count, launch = np.array(rows, np.float32), len(rows), Launch("cpu")
    real = logits[:, :vocab_size]
    nothing = ~(real > -np.inf).any(axis=1)
    out, combined = np.full(count, -7, np.int32), np.full(count, -7, np.int32)
    launch.run(argmax, out, logits, vocab_size, live(count))
    value, column = np.full((stripes, count), 7, np.float32), np.full((stripes, count), -7, np.int32)
    launch.run(stripe_argmax, value, column, logits, vocab_size, live(count))
    launch.run(best_of_stripes, combined, value, column, live(count))
    np.testing.assert_array_equal(out, np.where(nothing, NO_TOKEN, np.where(real > -np.inf, real, -np.inf).argmax(axis=1)))
    np.testing.assert_array_equal(combined, out)


def test_argmax_of_a_real_vocabulary() -> None:
    logits = floats(23, 3, 49152)
    logits[1, [30000, 30001, 49151]] = 9.0  # ties across and within tiles
    logits[2] = logits[2].round(1)
    args = {"out": untouched(3, dtype=np.int32), "logits": logits, "vocab_size": 49152, "num_rows": live(3)}
    Launch("cpu").check(argmax, args, {"out": oracle.argmax(**args)})


@kernel(writes=("out",))
def exp_kernel(out, x):
    for i in range(cuda.threadIdx.x, x.shape[0], cuda.blockDim.x):
        out[i] = exp(x[i])


@launches((1, 4))
def test_exp(launch: Launch) -> None:
    step = 0.37 if launch.executor == "simulator" else 1e-4
    x = np.concatenate([np.arange(-87, 88, step), [0.0, -0.0, 1e-30]]).astype(np.float32)
    out = np.empty_like(x)
    launch.run(exp_kernel, out, x)
    error = np.abs(out / np.exp(x.astype(np.float64)) - 1)
    assert error[np.abs(x) < 8].max() < 5e-7
    assert error.max() < 6e-6  # a CPU without fused multiply-add; 3e-7 with it
    edges = np.array([-np.inf, -1000, -88, 88.5, np.inf, np.nan], np.float32)
    out = np.empty_like(edges)
    launch.run(exp_kernel, out, edges)
    np.testing.assert_array_equal(out, [0, 0, 0, np.inf, np.inf, np.nan])
