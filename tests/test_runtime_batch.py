"""Slots, row order (vectors O1-O3), dispatch by state (hazard B13) and dummy batches (vector Y1)."""

from __future__ import annotations

import pytest

from runtime.batch import QueryRow, RowShape, SlotPool, dummy_batch, order_rows, uniform_query_length
from runtime.errors import CapacityError, ConfigError


def test_lowest_free_slot_first_and_reuse_at_once() -> None:
    slots = SlotPool(4)
    assert [slots.acquire() for _ in range(4)] == [0, 1, 2, 3]
    slots.release(2)
    slots.release(1)
    assert slots.acquire() == 1
    assert slots.num_free == 1
    assert slots.held == {0, 1, 3}
    slots.check_integrity()


def test_slot_misuse_is_refused() -> None:
    slots = SlotPool(1)
    slot = slots.acquire()
    with pytest.raises(CapacityError, match="all 1 slots are in use"):
        slots.acquire()
    slots.release(slot)
    for missing in (slot, 5, -1):
        with pytest.raises(RuntimeError, match="is not held"):
            slots.release(missing)
    with pytest.raises(ConfigError, match="max_num_seqs = 0"):
        SlotPool(0)


def test_the_slot_integrity_check_can_fail() -> None:
    slots = SlotPool(2)
    slots.acquire()
    slots._held.clear()
    with pytest.raises(RuntimeError, match="slot accounting is broken"):
        slots.check_integrity()


ORDERS = {
    "O1": (
        [("p1", 100, True), ("d1", 1, False), ("p2", 7, True), ("d2", 1, False)], 1, ["d1", "d2", "p2", "p1"]
    ),
    "O2": (
        [("tail", 1, True), ("d1", 2, False), ("p1", 100, True), ("d2", 2, False)], 2, ["d1", "d2", "tail", "p1"]
    ),
    "O3": ([("fresh", 4096, True), ("resumed", 4096, False)], 1, ["resumed", "fresh"]),
    "stable": ([("a", 3, True), ("b", 1, False), ("c", 3, True), ("d", 1, False)], 1, ["b", "d", "a", "c"]),
    "tail of 1 + k": ([("tail", 4, True), ("d", 4, False)], 4, ["d", "tail"]),
    "long and past its prefill": ([("long", 9, False), ("p", 2, True), ("d", 4, False)], 4, ["d", "long", "p"]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_order_rows(name: str) -> None:
    rows, query_len, expected = ORDERS[name]
    assert [row[0] for row in order_rows(rows, query_len, lambda row: RowShape(row[1], row[2]))] == expected


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("chunk", [0, 8, 16])
def test_b13_a_prefill_chunk_with_the_shape_of_a_decode_row_is_not_uniform(k: int, chunk: int) -> None:
    width = 1 + k
    decode = QueryRow(20, 9, width)
    last_chunk = QueryRow(chunk, chunk + width, width)
    assert uniform_query_length([last_chunk], width) is None
    assert uniform_query_length([decode, last_chunk], width) is None
    # One step later the same request stands exactly at the end of its prefill and is a decode row.
    assert uniform_query_length([decode, QueryRow(chunk + width, chunk + width, width)], width) == width


def test_uniform_needs_one_length_and_ignores_pads() -> None:
    assert uniform_query_length([QueryRow(9, 5, 4), QueryRow(9, 5, 3)], 4) is None
    assert uniform_query_length([QueryRow(9, 5, 1), QueryRow(9, 5, 1)], 4) is None
    assert uniform_query_length([QueryRow(9, 5, 4), QueryRow(0, 5, 0, padded=True)], 4) == 4
    assert uniform_query_length([QueryRow(0, 0, 4, padded=True)], 4) is None
    assert uniform_query_length([], 4) is None


@pytest.mark.parametrize(
    ("num_requests", "num_tokens", "expected"),
    [(256, 496, [1] * 16 + [2] * 240), (128, 512, [4] * 128), (3, 8, [2, 3, 3]), (1, 7, [7]), (5, 5, [1] * 5)],
)
def test_y1_dummy_batch(num_requests: int, num_tokens: int, expected: list[int]) -> None:
    assert dummy_batch(num_requests, num_tokens) == expected


@pytest.mark.parametrize(("num_requests", "num_tokens"), [(0, 4), (5, 4), (-1, 4)])
def test_dummy_batch_refuses_rows_without_a_token(num_requests: int, num_tokens: int) -> None:
    with pytest.raises(ValueError, match="num_requests"):
        dummy_batch(num_requests, num_tokens)
