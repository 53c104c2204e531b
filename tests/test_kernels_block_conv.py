"""Convolutions of draft blocks, alone and in the join of two sublayers, against their NumPy oracles, njit and simulator."""

from __future__ import annotations

import pytest

from kernels import oracle_dflash as oracle
from kernels.block_conv import block_conv
from kernels.block_join import join_conv, join_norm
from tests.block_cases import join_case
from tests.fused_cases import check as check_stored
from tests.fused_cases import forms, out_of, wide_args
from tests.kernel_cases import Launch, floats, live, poisoned
from tests.storage_cases import stored


@forms((1, 1), ((2, 2), 3), ((5, 7), 2))
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("taps", "groups", "queries"), [(2, 3, 4), (3, 1, 2), (1, 6, 3), (4, 2, 4)], ids=str)
def test_block_conv(launch: Launch, storage: str, side: int, taps: int, groups: int, queries: int) -> None:
    count = 2 * queries
    args = {
        "out": out_of(storage, 3 * queries, 6),
        "x": stored(poisoned(floats(7, 3 * queries, 6), count), storage),
        "base_kernel": floats(8, 2, taps, 6),
        "delta": poisoned(floats(9, 3 * queries, 2 * taps * groups), count),
        "side": side,
        "queries": queries,
        "num_tokens": live(count),
    }
    check_stored(launch, block_conv, args, {"out": oracle.block_conv(**wide_args(args))}, storage)


@forms(((1, 1), 1), ((3, 2), 3), ((2, 1), 8))
@pytest.mark.parametrize("joins", [0, 1])
@pytest.mark.parametrize(("groups", "queries"), [(3, 4), (1, 2), (6, 3), (4, 9)], ids=str)
def test_join_conv(launch: Launch, storage: str, joins: int, groups: int, queries: int) -> None:
    """Rows of pads and whatever belongs to the other side are NaN; a neighbour in front of an anchor is another request's."""
    args = join_case(storage, joins, groups, queries)
    check_stored(launch, join_conv, args, oracle.join_conv(**wide_args(args)), storage)


@forms(((1, 1), 1), ((3, 2), 3), ((9, 1), 4))
@pytest.mark.parametrize(("groups", "queries", "width"), [(3, 4, 12), (1, 2, 12), (5, 3, 80)], ids=str)
def test_join_norm(launch: Launch, storage: str, groups: int, queries: int, width: int) -> None:
    case = join_case(storage, 1, groups, queries, width)
    names = ("out", "residual", "added", "done_kernel", "done_delta", "gain", "eps", "queries")
    args = {**{name: case[name] for name in names}, "num_tokens": live(2 * queries)}
    check_stored(launch, join_norm, args, {"out": oracle.join_norm(**wide_args(args))}, storage)
