"""A row of logits in parts: the columns of one of the blocks or stripes that share it, and four columns of a thread at a time."""

from __future__ import annotations

from kernels.lang import device_function, i32, u64
from kernels.project import ceil_div

AT_ONCE = 4
"""Columns that a thread loads before it uses the first: a GPU waits once for all of them."""


@device_function
def part_of(columns, part, parts):
    """(begin, end): the columns of one of the `parts` that share so many; none of those behind the last."""
    width = ceil_div(columns, i32(parts))
    begin = min(i32(part) * width, columns)
    return begin, min(i32(begin + width), columns)


@device_function
def four_of(logits, row, column, apart):
    """Four logits of a row from `column` on, `apart` from each other: what a thread has while its neighbours have the others."""
    return (
        logits[row, u64(column)],
        logits[row, u64(column + apart)],
        logits[row, u64(column + i32(2) * apart)],
        logits[row, u64(column + i32(3) * apart)],
    )
