"""The cells of a table that the host has changed since the device last heard of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.mirror_errors import MirrorError
from runtime.mirror_values import HostIndex

_NOTHING = np.zeros((0, 3), np.int32)


class DiffLog:
    """(row, column, value) of every write, oldest first: on the same cell the later one wins, as kernels/slots.staged_write does.

    Args:
        name, shape: of the table, two axes.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) != 2:
            raise MirrorError(f"{name}: shape = {list(shape)}; diffs are (row, column, value), so two axes are needed")
        self._name = name
        self._columns = shape[1]
        self._cells = np.arange(shape[0] * shape[1]).reshape(shape)
        self._writes: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._writes)

    def note(self, values: npt.NDArray[Any], index: HostIndex) -> None:
        """`array[index] = values`, as the cells that it writes."""
        if isinstance(index, tuple) and len(index) == 2:
            row, column = index
            if isinstance(row, int) and isinstance(column, int) and row >= 0 and column >= 0:  # one cell: what a step writes most
                self._writes.append((row, column, int(values)))
                return
        cells = np.asarray(self._cells[index])
        for cell, value in zip(cells.ravel().tolist(), np.broadcast_to(values, cells.shape).ravel().tolist(), strict=True):
            self._writes.append((*divmod(cell, self._columns), value))

    def note_cells(self, cells: Sequence[tuple[int, int, int]]) -> None:
        """(row, column, value) of each."""
        self._writes += cells

    def take(self, capacity: int) -> npt.NDArray[np.int32]:
        """int32 [n, 3]; MirrorError, and nothing taken, when n would exceed `capacity`."""
        if len(self._writes) > capacity:
            raise MirrorError(
                f"{self._name}: {len(self._writes)} cells were written, the staged block holds {capacity}; "
                f"upload(stream) the whole table"
            )
        if not self._writes:
            return _NOTHING
        taken = np.array(self._writes, np.int32).reshape(-1, 3)
        self._writes.clear()
        return taken

    def clear(self) -> None:
        """The whole table was uploaded."""
        self._writes.clear()
