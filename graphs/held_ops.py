"""Heads whose weights are read at the pace of memory: of short rows, held in registers (kernels/held.py), or of longer ones, which
flow (graphs/flow_ops.py).

For up to 8 rows of logits, as there; a form among others, which competes with the library's product.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.flow_ops import FlowLayout, flow_layouts_of
from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.held import HELD_COLUMNS, HELD_ROWS, HELD_WARPS
from kernels.held_head import held_argmax

_LARGE_BYTES = 8 << 20
"""16-bit weights of a head below which a launch is over before memory is busy."""

_BLOCKS = 132
"""A block on each multiprocessor of an H200. No result depends on it."""


@dataclass(frozen=True)
class HeldLayout:
    """How a head of short rows is laid out, from the shape of its weights alone.

    Attributes:
        warps: of a block.
        grid: blocks of the launch.
    """

    warps: int
    grid: int

    def record_head(
        self, run: ForwardPass, logits: Array, best: tuple[Array, Array], rows: Array, num_rows: Array
    ) -> tuple[Array, Array]:
        """Logits, and the best column of each stripe: returned are the stripes of `best` that were written."""
        value, column = (array[: self.grid] for array in best)
        arguments = (logits, value, column, rows, run.model.head, run.model.shape.vocab_size, num_rows)
        run.launch.launch(held_argmax, value.shape[0], 32 * self.warps, *arguments)
        return value, column


def head_layout_of(outputs: int, depth: int) -> HeldLayout | FlowLayout | None:
    """How a head of this shape competes with the library's; None: not at all."""
    if depth == HELD_COLUMNS and 2 * outputs * depth >= _LARGE_BYTES:
        return HeldLayout(HELD_WARPS, min(_BLOCKS, -(-outputs // (HELD_WARPS * HELD_ROWS))))
    flowing = flow_layouts_of("head", outputs, depth)
    return flowing[0] if flowing else None
