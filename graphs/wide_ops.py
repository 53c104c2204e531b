"""Gate and up of a step of many rows in a launch of our own (kernels/wide_gate_up.py): how it is laid out, and recorded.

For steps of up to 64 rows, where the tiles of graphs/fused_ops.py read their weights once for every eight. A form among others,
taken where it was measured faster; never by `numerics: batch_invariant`, whose sums have another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import LayerArrays
from graphs.ops import ForwardPass
from kernels.wide_gate_up import OUTPUTS, wide_gate_up
from kernels.wide_tile import WIDE_WARPS

_FEWEST_TILES = 64
"""Half of the multiprocessors of an H200: fewer blocks do not keep its memory busy."""


@dataclass(frozen=True)
class WideLayout:
    """How the product is laid out, from the shape of its weights alone.

    Attributes:
        grid: blocks of the launch.
    """

    grid: int

    def record_gate_up(self, run: ForwardPass, layer: LayerArrays) -> None:
        """scratch.normed, the norm itself -> scratch.activated."""
        activated, normed = run.scratch.activated[: run.num_tokens], run.scratch.normed[: run.num_tokens]
        run.launch.launch(wide_gate_up, self.grid, 32 * WIDE_WARPS, activated, normed, layer.gate_up, run.live)


def wide_layouts_of(name: str, outputs: int, depth: int) -> list[WideLayout]:
    """The wide layouts of a product worth measuring; none of any but gate and up. name: qkv, out, gate_up or down."""
    tiles = -(-outputs // 2 // OUTPUTS)
    if name != "gate_up" or tiles < _FEWEST_TILES or outputs % 16 or depth % 8:
        return []
    return [WideLayout(tiles)]
