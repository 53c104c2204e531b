"""Large products of a decode step whose weights flow (kernels/flow.py): how each is laid out, and recorded.

For steps of up to 8 rows: every eight rows more read the weights once more. A form among others, taken where it was measured
faster; never by `numerics: batch_invariant`, whose sums have another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.flow import LINE, MOST_COLUMNS, WARPS
from kernels.flow_head import flow_argmax
from kernels.flow_project import flow_gate_up, flow_project
from kernels.flow_residual import flow_residual, flow_residual_tap
from kernels.lang import Kernel
from kernels.slab import HALF
from kernels.slab_gate_up import slab_gate_up
from kernels.tile import TILE_ROWS

_LARGE_BYTES = 8 << 20
"""16-bit weights of a product below which a launch is over before a ring is full."""

_BLOCKS = 132
"""A block on each multiprocessor of an H200. No result depends on it."""


@dataclass(frozen=True)
class FlowLayout:
    """How a product is laid out, from the shape of its weights alone.

    Attributes:
        parts: warps that share the columns of a tile.
        warps: of a block.
        grid: blocks of the launch.
        slabs: of gate and up: the warps of a tile share a ring of slabs (kernels/slab_gate_up.py), as those of a head do anyway.
    """

    parts: int
    warps: int
    grid: int
    slabs: bool = False

    @property
    def gate_up_kernel(self) -> Kernel:
        return slab_gate_up if self.slabs else flow_gate_up

    def record_project(self, run: ForwardPass, out: Array, normed: Array, squares: Array, weight: Array, scaled: int) -> None:
        """out = (normed @ weight.T) / rms."""
        arguments = (out, normed, squares, weight, run.model.shape.rms_norm_eps, scaled, self.parts, run.live)
        run.launch.launch(flow_project, self.grid, 32 * self.warps, *arguments)

    def record_gate_up(self, run: ForwardPass, normed: Array, squares: Array, layer: LayerArrays, scaled: int) -> None:
        """Residual -> norm -> scratch.activated."""
        activated, eps = run.scratch.activated[: run.num_tokens], run.model.shape.rms_norm_eps
        arguments = (activated, normed, squares, layer.gate_up, eps, scaled, self.parts, run.live)
        run.launch.launch(self.gate_up_kernel, self.grid, 32 * self.warps, *arguments)

    def record_residual(
        self, run: ForwardPass, written: tuple[Array, Array, Array], x: Array, weight: Array, gain: Array, *, tapped: bool
    ) -> None:
        """residual += x @ weight.T, with what the norm behind reads; tapped: to run.tap too, where there is one."""
        last = (self.parts, run.live)
        if run.tap is None or not tapped:
            run.launch.launch(flow_residual, self.grid, 32 * self.warps, *written, x, weight, gain, *last)
            return
        features = run.tap.features[: run.num_tokens]
        arguments = (*written, features, x, weight, gain, run.tap.column, *last)
        run.launch.launch(flow_residual_tap, self.grid, 32 * self.warps, *arguments)

    def record_head(
        self, run: ForwardPass, logits: Array, best: tuple[Array, Array], rows: Array, num_rows: Array
    ) -> tuple[Array, Array]:
        """Logits, and the best column of each stripe: returned are the stripes of `best` that were written."""
        value, column = (array[: self.grid] for array in best)
        arguments = (logits, value, column, rows, run.model.head, run.model.shape.vocab_size, self.parts, num_rows)
        run.launch.launch(flow_argmax, value.shape[0], 32 * self.warps, *arguments)
        return value, column


def flow_layouts_of(name: str, outputs: int, depth: int) -> list[FlowLayout]:
    """The layouts of a product worth measuring; none of a small one, or where a warp would have too many columns. name: qkv, out,
    gate_up, down or head."""
    parts = -(-depth // MOST_COLUMNS)
    if 2 * outputs * depth < _LARGE_BYTES or depth % LINE or parts > WARPS:
        return []
    at_once, columns = WARPS // parts, outputs // 2 if name == "gate_up" else outputs

    def layout(height: int, *, slabs: bool = False) -> FlowLayout:
        return FlowLayout(parts, parts * at_once, min(_BLOCKS, -(-columns // (at_once * height))), slabs)

    if name == "gate_up":
        return [layout(TILE_ROWS), layout(HALF, slabs=True)]
    return [layout(TILE_ROWS if name == "head" else 2 * TILE_ROWS)]
