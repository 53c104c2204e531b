"""Heads of steps of many rows (kernels/wide_head.py): how one is laid out, and recorded.

For more rows than a flowing head (graphs/flow_ops.py) reads its weights once for. A form among others, taken where it was measured
faster than the library's product with an argmax behind it; never by `numerics: batch_invariant`, whose sums have another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.wide_head import wide_head
from kernels.wide_shape import HEIGHT, THREADS

_BLOCKS = 132
"""A block on each multiprocessor of an H200. No result depends on it."""


@dataclass(frozen=True)
class WideHead:
    """How a head is laid out, from the shape of its weights alone.

    Attributes:
        grid: blocks of the launch, a stripe each.
    """

    grid: int

    def record_head(
        self, run: ForwardPass, logits: Array, best: tuple[Array, Array], rows: Array, num_rows: Array
    ) -> tuple[Array, Array]:
        """Logits, and the best column of each stripe: returned are the stripes of `best` that were written."""
        value, column = (array[: self.grid] for array in best)
        arguments = (logits, value, column, rows, run.model.head, run.model.shape.vocab_size, num_rows)
        run.launch.launch(wide_head, value.shape[0], THREADS, *arguments)
        return value, column


def wide_head_of(outputs: int, depth: int) -> WideHead | None:
    """How a head of this shape competes with the library's; None: not at all."""
    tiles = -(-outputs // HEIGHT)
    if outputs % 8 or depth % 8 or tiles < _BLOCKS:
        return None
    return WideHead(-(-tiles // -(-tiles // _BLOCKS)))
