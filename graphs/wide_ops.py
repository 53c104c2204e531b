"""Products of a step of many rows in launches of our own (kernels/wide_project.py): how each is laid out, and recorded.

For steps of up to 64 rows, where the tiles of graphs/fused_ops.py read their weights once for every eight. A form among others,
taken where it was measured faster; never by `numerics: batch_invariant`, whose sums have another order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.tile import CHUNK
from kernels.wide_project import HIGH, LOW, wide_gate_up, wide_project, wide_residual, wide_residual_tap
from kernels.wide_tile import WIDE_TOKENS, WIDE_WARPS

_PARTS = (4, 2, 1)
"""Blocks that share the columns of a tile: as many as multiprocessors allow."""

_BLOCKS = 132
"""A block on each multiprocessor of an H200. No result depends on it but the order of sums, which is the layout's."""

_LARGE_BYTES = 8 << 20
"""16-bit weights of a product below which there is less than a tile for a multiprocessor."""

NORM_THREADS = 32 * (WIDE_WARPS + 1)
THREADS = 32 * WIDE_WARPS

EXCHANGE = (_BLOCKS, WIDE_TOKENS * HIGH)
"""Shape of Exchange.partial."""


@dataclass(frozen=True)
class Exchange:
    """Where blocks that share the columns of a tile leave sums for each other; one for all products of a stream."""

    partial: Array  # float32 [blocks, tokens * weight rows of a tile]
    arrivals: Array  # int32 [blocks], zeros at first


@dataclass(frozen=True)
class WideLayout:
    """How a product is laid out, from the shape of its weights alone.

    Attributes:
        parts: blocks that share the columns of a tile.
        grid: blocks of the launch, parts * tiles.
        exchange: of the set that takes it.
    """

    parts: int
    grid: int
    exchange: Exchange | None = field(default=None, compare=False, repr=False)

    @property
    def _shared(self) -> tuple[Array, Array]:
        assert self.exchange is not None, "a wide product needs memory for its sums"
        return self.exchange.partial, self.exchange.arrivals

    def record_project(self, run: ForwardPass, out: Array, normed: Array, squares: Array, weight: Array, scaled: int) -> None:
        """out = (normed @ weight.T) / rms."""
        arguments = (out, *self._shared, normed, squares, weight, run.model.shape.rms_norm_eps, scaled, self.parts, run.live)
        run.launch.launch(wide_project, self.grid, NORM_THREADS, *arguments)

    def record_gate_up(self, run: ForwardPass, normed: Array, squares: Array, layer: LayerArrays, scaled: int) -> None:
        """Residual -> norm -> scratch.activated."""
        activated, eps = run.scratch.activated[: run.num_tokens], run.model.shape.rms_norm_eps
        arguments = (activated, *self._shared, normed, squares, layer.gate_up, eps, scaled, self.parts, run.live)
        run.launch.launch(wide_gate_up, self.grid, NORM_THREADS, *arguments)

    def record_residual(
        self, run: ForwardPass, written: tuple[Array, Array, Array], x: Array, weight: Array, gain: Array, *, tapped: bool
    ) -> None:
        """residual += x @ weight.T, with what the norm behind reads; tapped: to run.tap too, where there is one."""
        if run.tap is None or not tapped:
            run.launch.launch(wide_residual, self.grid, THREADS, *written, *self._shared, x, weight, gain, self.parts, run.live)
            return
        features = run.tap.features[: run.num_tokens]
        arguments = (*written, features, *self._shared, x, weight, gain, run.tap.column, self.parts, run.live)
        run.launch.launch(wide_residual_tap, self.grid, THREADS, *arguments)


def wide_layouts_of(name: str, outputs: int, depth: int) -> list[WideLayout]:
    """The wide layouts of a product worth measuring; none of a small one, or of one that is not a multiple of eight outputs. name:
    qkv, out, gate_up or down."""
    of_a_tile = {"qkv": HIGH, "gate_up": HIGH // 2}.get(name, LOW)
    columns = outputs // 2 if name == "gate_up" else outputs
    if 2 * outputs * depth < _LARGE_BYTES or columns % 8 or depth % 8:
        return []
    tiles, chunks = -(-columns // of_a_tile), -(-depth // CHUNK)
    parts = next((parts for parts in _PARTS if tiles * parts <= _BLOCKS and parts <= chunks), 1)
    return [WideLayout(parts, tiles * parts)]
