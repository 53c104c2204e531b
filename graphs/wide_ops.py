"""Products of a step of many rows in launches of our own (kernels/wide_tile.py): how each is laid out, and recorded.

For steps of up to 64 rows, where the tiles of graphs/fused_ops.py read their weights once for every eight. A form among others,
taken where it was measured faster; never by `numerics: batch_invariant`, whose sums have another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import ForwardPass
from graphs.plain_ops import norm_threads
from graphs.taps import Tap
from kernels.add_norm import MOST_PARTS
from kernels.behind_product import EIGHT
from kernels.tile import CHUNK
from kernels.wide_gate_up import OUTPUTS, wide_gate_up
from kernels.wide_parts import add_parts, add_parts_tap, wide_parts
from kernels.wide_shape import HEIGHT, THREADS

_BLOCKS = 132
"""A block on each multiprocessor of an H200. No result depends on it but the order of sums, which is the layout's."""

_FEWEST_BLOCKS = _BLOCKS // 2
"""Fewer do not keep its memory busy."""

_FEWEST_CHUNKS = 8
"""Of a part: the ring is to be filled more than once."""

_MOST_ADDING = 512
"""Threads that registers allow a block that adds parts up."""


@dataclass(frozen=True)
class WideLayout:
    """How a product is laid out, from the shape of its weights alone.

    Attributes:
        grid: blocks of the launch.
        parts: blocks that share the columns of a tile.
    """

    grid: int
    parts: int = 1

    def record_gate_up(self, run: ForwardPass, layer: LayerArrays) -> None:
        """scratch.normed, the norm itself -> scratch.activated."""
        activated, normed = run.scratch.activated[: run.num_tokens], run.scratch.normed[: run.num_tokens]
        run.launch.launch(wide_gate_up, self.grid, THREADS, activated, normed, layer.gate_up, run.live)

    def record_residual(self, run: ForwardPass, x: Array, weight: Array, norm: Array, tap: Tap | None) -> None:
        """residual += x @ weight.T, to the tap as well; its norm -> scratch.normed. Sums of parts go through scratch.gate_up, which
        nobody needs then."""
        tokens, eps = run.num_tokens, run.model.shape.rms_norm_eps
        normed, sums = run.scratch.normed[:tokens], run.scratch.gate_up[:tokens]
        parts = min(self.parts, sums.shape[1] // weight.shape[0])
        run.launch.launch(wide_parts, self.grid, THREADS, sums, x, weight, parts, run.live)
        threads = min(norm_threads(-(-normed.shape[1] // EIGHT)), _MOST_ADDING)
        if tap is None:
            run.launch.launch(add_parts, tokens, threads, run.residual, normed, sums, norm, eps, parts, run.live)
            return
        arguments = (run.residual, normed, tap.features[:tokens], sums, norm, eps, tap.column, parts, run.live)
        run.launch.launch(add_parts_tap, tokens, threads, *arguments)


def wide_layouts_of(name: str, outputs: int, depth: int) -> list[WideLayout]:
    """The wide layouts of a product worth measuring; none where the norm behind it is not whole, or of too few blocks. name: qkv,
    out, gate_up or down."""
    if name == "gate_up":
        tiles, parts = -(-outputs // 2 // OUTPUTS), 1
        fits = outputs % 16 == 0
    else:
        tiles, chunks = -(-outputs // HEIGHT), -(-depth // CHUNK)
        parts = max(min(_BLOCKS // tiles, MOST_PARTS, chunks // _FEWEST_CHUNKS, 2 * depth // outputs), 1)
        fits = name == "down" and outputs % 8 == 0 and outputs <= 2 * depth  # columns of scratch.gate_up
    return [WideLayout(tiles * parts, parts)] if fits and depth % 8 == 0 and tiles * parts >= _FEWEST_BLOCKS else []
