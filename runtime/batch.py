"""Slots, the order of rows in a step, and which steps are uniform: the shape of a batch, decided by state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from runtime.errors import CapacityError, ConfigError

Row = TypeVar("Row")



class SlotPool:
    """N fixed slots of per-request device state; the lowest free one is taken first, so live slots stay dense.

    A released slot may be taken again at once, while frames of its old owner are still queued: device work is ordered
    by the compute stream, and the admission that rewrites every field of the slot is queued behind them.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ConfigError(f"max_num_seqs = {num_slots}: must be at least 1")
        self.num_slots = num_slots
        self._free = list(range(num_slots))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def acquire(self) -> int:
        """The lowest free slot; CapacityError when there is none."""
        if not self._free:
            raise CapacityError(f"all {self.num_slots} slots are in use: raise max_num_seqs or wait for a request")
        slot = heapq.heappop(self._free)
        self._held.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """RuntimeError for a slot that nobody holds (double release)."""
        if slot not in self._held:
            raise RuntimeError(f"slot = {slot} is not held: it was released before, or never acquired")
        self._held.remove(slot)
        heapq.heappush(self._free, slot)

    def check_integrity(self) -> None:
        """RuntimeError unless free and held slots are together each slot exactly once."""
        if sorted([*self._free, *self._held]) != list(range(self.num_slots)):
            raise RuntimeError(f"slot accounting is broken: free = {self._free}, held = {sorted(self._held)}")


class Shaped(Protocol):
    """What ordering looks at: the tokens that a row has in this step and whether it begins inside its prefill."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def is_prefilling(self) -> bool: ...


class RowShape(NamedTuple):
    """Nothing but that, for rows that are something else."""

    num_tokens: int
    is_prefilling: bool


class QueryRow(NamedTuple):
    """What dispatch looks at. Below prefill_len num_computed is exact on the host, so the test is exact as well."""

    num_computed: int
    prefill_len: int
    query_len: int
    padded: bool = False  # a row that only fills up a captured size


def order_rows(rows: Iterable[Row], query_len: int, shape: Callable[[Row], Shaped]) -> list[Row]:
    """Rows in batch order: decode rows first, then by is_prefilling, then by ascending tokens; stable.

    A decode row is past its prefill and has at most query_len tokens. A one-token tail of a prompt is none, whatever
    its size. Attention kernels split the batch at the first row that is not a decode row.
    """

    def key(row: Row) -> tuple[bool, bool, int]:
        shaped = shape(row)
        is_prefilling, num_tokens = shaped.is_prefilling, shaped.num_tokens
        is_decode = not is_prefilling and num_tokens <= query_len
        return (not is_decode, is_prefilling, num_tokens)

    return sorted(rows, key=key)


def uniform_query_length(rows: Iterable[QueryRow], query_len: int) -> int | None:
    """query_len when a graph captured for that query length may run these rows, else None.

    Decided by state: no row is still prefilling. A prompt of exactly 1 + k tokens, or one whose last chunk has 1 + k,
    has the shape of a verify row and must not be one: it would be sampled against drafts that it does not have.
    Padded rows are ignored. No live row: None.
    """
    live = [row for row in rows if not row.padded]
    if not live:
        return None
    if any(row.num_computed < row.prefill_len or row.query_len != query_len for row in live):
        return None
    return query_len


def dummy_batch(num_requests: int, num_tokens: int) -> list[int]:
    """Row lengths of a warm-up or capture batch: as equal as can be, the longer rows last.

    Giving the whole remainder to one row would make it longer than its block table (seen elsewhere with 496 tokens
    over 256 rows). ValueError unless 1 <= num_requests <= num_tokens.
    """
    if not 1 <= num_requests <= num_tokens:
        raise ValueError(f"num_requests = {num_requests}: must be in 1 .. num_tokens = {num_tokens}")
    length, num_longer = divmod(num_tokens, num_requests)
    return [length] * (num_requests - num_longer) + [length + 1] * num_longer
