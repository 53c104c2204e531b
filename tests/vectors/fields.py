"""Reading the fields of a vector: optional ones, scalars that stand for every slot, lists or {slot: value} by slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Inputs = Mapping[str, Any]


def ints(values: Any) -> Ints:
    return np.ascontiguousarray(values, np.int32)


def live(count: int) -> Ints:
    """A live count as kernels take it."""
    return ints([count])


def request_rows(inputs: Inputs) -> Ints:
    """idx_mapping; row r is slot r where it is absent or null."""
    mapping = inputs.get("idx_mapping")
    if mapping is not None:
        return ints(mapping)
    for name in ("query_start_loc", "cu_num_logits"):
        if inputs.get(name) is not None:
            return ints(range(len(inputs[name]) - 1))
    for name in ("num_sampled", "seq_lens", "sampled"):
        if isinstance(inputs.get(name), Sequence):
            return ints(range(len(inputs[name])))
    raise KeyError("idx_mapping")


def by_row(inputs: Inputs, name: str, rows: int, default: int | None = None) -> Ints:
    """[R] one value for each row; a scalar stands for every row, `default` for an absent field."""
    value = inputs.get(name)
    if value is None:
        if default is None:
            raise KeyError(name)
        value = default
    return ints([value] * rows) if isinstance(value, int) else ints(value)


def prefix_sum(inputs: Inputs, name: str, rows: int, step: int = 1) -> Ints:
    """[R + 1]; absent or null: every row has `step`."""
    value = inputs.get(name)
    return ints(np.arange(rows + 1) * step) if value is None else ints(value)


def num_slots(inputs: Inputs, mapping: Ints, *by_slot_names: str) -> int:
    """Rows of the per-slot arrays: what any field or row of the vector needs."""
    needed = [1, *(int(slot) + 1 for slot in mapping)]
    for name in by_slot_names:
        value = inputs.get(name)
        if isinstance(value, Mapping):
            needed += [int(slot) + 1 for slot in value]
        elif isinstance(value, Sequence):
            needed.append(len(value))
    return max(needed)


def by_slot(inputs: Inputs, name: str, slots: int, default: int = 0) -> Ints:
    """[N] from a list, a {slot: value} or a scalar; slots not given hold `default`."""
    value = inputs.get(name)
    if isinstance(value, int):
        return ints([value] * slots)
    out = np.full(slots, default, np.int32)
    for slot, entry in _entries(value):
        if entry is not None:
            out[slot] = entry
    return out


def table_by_slot(inputs: Inputs, name: str, slots: int, width: int = 1) -> Ints:
    """[N, at least width] from rows of any lengths (a list of rows or {slot: row}), filled up with -1. An int is a row of one."""
    rows = [(slot, [row] if isinstance(row, int) else row or []) for slot, row in _entries(inputs.get(name))]
    out = np.full((slots, max([width, *(len(row) for _, row in rows)])), -1, np.int32)
    for slot, row in rows:
        out[slot, : len(row)] = row
    return out


def _entries(value: Any) -> list[tuple[int, Any]]:
    if value is None:
        return []
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(int(slot), entry) for slot, entry in pairs]
