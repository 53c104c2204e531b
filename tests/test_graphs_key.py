"""GraphKey and Buckets: which sizes are captured, and which one a step takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.key import Buckets, Family, GraphKey


@given(rows=st.integers(1, 512), k=st.integers(0, 16))
@settings(max_examples=50, deadline=None)
def test_uniform_keys_hold_whole_rows(rows: int, k: int) -> None:
    """B14: a token count that is no multiple of 1 + k would end inside a request."""
    key = GraphKey.uniform(rows, 1 + k)
    assert key.family is (Family.VERIFY if k else Family.DECODE)
    assert (key.num_requests, key.query_len, key.num_tokens) == (rows, 1 + k, rows * (1 + k))


def test_sizes_are_counted_in_requests_and_never_twice() -> None:
    """B14: capture sizes {1, 2, 4, 8} with k = 2 are 3, 6, 12, 24 tokens."""
    keys = [GraphKey.uniform(rows, 3) for rows in Buckets([8, 1, 2, 4, 2, 8]).sizes]
    assert [key.num_tokens for key in keys] == [3, 6, 12, 24]
    assert len(set(keys)) == 4


def test_keys_name_themselves() -> None:
    keys = [GraphKey.uniform(4, 1), GraphKey.uniform(2, 4), GraphKey.mixed(8, 64), GraphKey.propose(3)]
    assert [str(key) for key in keys] == ["decode[R=4,T=4,q=1]", "verify[R=2,T=8,q=4]", "mixed[R=8,T=64]", "propose[R=3]"]
    assert [str(replace(key, sampled=True)) for key in keys[1:3]] == ["verify[R=2,T=8,q=4,sampled]", "mixed[R=8,T=64,sampled]"]


@given(sizes=st.sets(st.integers(1, 300), min_size=1), n=st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_up_is_the_smallest_bucket_that_holds(sizes: set[int], n: int) -> None:
    assert Buckets(sizes).up(n) == min((size for size in sizes if size >= n), default=None)


@pytest.mark.parametrize("sizes", [[], [0, 4], [-1]])
def test_impossible_buckets_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Buckets(sizes)


def test_powers_end_with_the_largest_size() -> None:
    assert Buckets.powers(8).sizes == (1, 2, 4, 8)
    assert Buckets.powers(6).sizes == (1, 2, 4, 6)
    assert Buckets.powers(100, smallest=16).sizes == (16, 32, 64, 100)
    assert Buckets.powers(1).sizes == (1,)


@given(asked=st.none() | st.lists(st.integers(1, 64), min_size=1, max_size=6), largest=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_whatever_was_asked_for_the_largest_step_has_a_bucket(asked: list[int] | None, largest: int) -> None:
    buckets = Buckets.reaching(largest, asked, smallest=16)
    assert buckets.sizes[-1] == largest
    assert all(buckets.up(n) is not None for n in range(largest + 1))
    assert buckets.sizes[:-1] == tuple(sorted({n for n in asked if n < largest})) if asked is not None else True
