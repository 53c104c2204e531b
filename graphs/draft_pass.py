"""What every part of a drafter's recording works on, and the sublayers' seam: how the residual stream meets the next product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from graphs.arrays import SlotState, StepArrays
from graphs.drafter_arrays import DraftArrays, DraftConvArrays, DraftLayerArrays, DraftScratch
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.plain_ops import THREADS, norm_threads
from graphs.tile_layouts import Layout
from kernels.block_attention import block_attention
from kernels.block_conv import block_conv
from kernels.head_norm import head_norm
from kernels.project import norm_gate_up, norm_project
from kernels.rmsnorm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu


@dataclass(frozen=True)
class Products:
    """Which products are our own (kernels/project.py): of few rows and small matrices, where a library's launch costs most.

    Attributes:
        most_rows: 0 = all are the library's.
        most_bytes: of a matrix.
    """

    most_rows: int = 0
    most_bytes: int = 0

    def ours(self, x: Array, weight: Array) -> bool:
        return x.shape[0] <= self.most_rows and weight.nbytes <= self.most_bytes and weight.shape[1] % 8 == 0


@dataclass(frozen=True)
class DraftPass:
    """One recording of a proposal: key.num_requests rows at most, a block of 1 + k query rows each."""

    launch: Launcher
    arrays: DraftArrays
    scratch: DraftScratch
    state: SlotState
    step: StepArrays
    key: GraphKey
    k: int
    products: Products

    @property
    def requests(self) -> int:
        return self.key.num_requests

    @property
    def count(self) -> int:
        """Query rows."""
        return self.key.num_requests * (1 + self.k)

    @property
    def live(self) -> Array:
        """int32 [1]: live query rows."""
        return self.scratch.block_live[0:1]

    @property
    def live_picks(self) -> Array:
        return self.scratch.block_live[1:2]

    def product(self, out: Array, x: Array, weight: Array, live: Array) -> None:
        """out = x @ weight.T."""
        if not self.products.ours(x, weight):
            self.launch.matmul(out, x, weight, live)
            return
        layout, eps = Layout.of(*weight.shape, slabs=1), self.arrays.shape.rms_norm_eps
        # The sums of squares are not read, since x need not be normalised.
        arguments = (out, x, self.scratch.fused[:1], weight, eps, 1, layout.parts, live)
        self.launch.launch(norm_project, layout.grid, 32 * (layout.warps + 1), *arguments)

    def gate_up(self, activated: Array, x: Array, weight: Array, live: Array) -> None:
        """activated = silu(gate) * up of x."""
        if self.products.ours(x, weight):
            outputs, depth = weight.shape
            layout, eps = Layout.of(outputs, depth, slabs=2), self.arrays.shape.rms_norm_eps
            arguments = (activated, x, self.scratch.fused[:1], weight, eps, 1, layout.parts, live)
            self.launch.launch(norm_gate_up, layout.grid, 32 * (layout.warps + 1), *arguments)
            return
        both = self.scratch.gate_up[: x.shape[0]]
        self.launch.matmul(both, x, weight, live)
        blocks = (x.shape[0], -(-activated.shape[1] // THREADS))
        self.launch.launch(swiglu, blocks, THREADS, activated, both, live)


class Joins(Protocol):
    """From what a sublayer yields to what the next one reads. Both return that input, [R * Q, H] of the storage type."""

    def first(self, run: DraftPass, gain: Array, conv: DraftConvArrays | None) -> Array:
        """scratch.residual -> norm with `gain` -> convolution."""
        ...

    def next(self, run: DraftPass, place: int, done: DraftConvArrays | None, gain: Array, conv: DraftConvArrays | None) -> Array:
        """scratch.projected -> convolution `done` -> residual -> norm with `gain` -> convolution `conv`, behind sublayer number
        `place`, from 1 on. Behind the last one, where `conv` is None in either version, the result is in scratch.normed.
        """
        ...


class BlockAttention(Protocol):
    """scratch.qkv -> scratch.attention of one layer."""

    def record(self, run: DraftPass, index: int, layer: DraftLayerArrays) -> None: ...


class PlainJoins:
    """A launch for each step. Any shape, any number of rows."""

    def first(self, run: DraftPass, gain: Array, conv: DraftConvArrays | None) -> Array:
        normed, residual = run.scratch.normed[: run.count], run.scratch.residual[: run.count]
        threads, eps = norm_threads(residual.shape[1]), run.arrays.shape.rms_norm_eps
        run.launch.launch(rms_norm, run.count, threads, normed, residual, gain, eps, run.live)
        return self._before(run, conv)

    def next(self, run: DraftPass, place: int, done: DraftConvArrays | None, gain: Array, conv: DraftConvArrays | None) -> Array:
        scratch, count, eps = run.scratch, run.count, run.arrays.shape.rms_norm_eps
        normed, residual, added = scratch.normed[:count], scratch.residual[:count], scratch.projected[:count]
        if done is not None:
            assert scratch.finished is not None
            added = self._convolve(run, scratch.finished[:count], added, done, side=1)
        threads = norm_threads(residual.shape[1])
        run.launch.launch(add_rms_norm, count, threads, normed, residual, added, gain, eps, run.live)
        return self._before(run, conv)

    def _before(self, run: DraftPass, conv: DraftConvArrays | None) -> Array:
        """The normed rows, convolved where the drafter does that. Both sides get their kernels from them."""
        normed = run.scratch.normed[: run.count]
        if conv is None:
            return normed
        assert run.scratch.conv_delta is not None
        assert run.scratch.convolved is not None
        run.product(run.scratch.conv_delta[: run.count], normed, conv.projection, run.live)
        return self._convolve(run, run.scratch.convolved[: run.count], normed, conv, side=0)

    def _convolve(self, run: DraftPass, out: Array, x: Array, conv: DraftConvArrays, *, side: int) -> Array:
        assert run.scratch.conv_delta is not None
        delta = run.scratch.conv_delta[: run.count]
        blocks = -(-out.shape[1] // THREADS)
        run.launch.launch(
            block_conv, (run.count, blocks), THREADS, out, x, conv.base_kernel, delta, side, 1 + run.k, run.live
        )
        return out


class PlainBlockAttention:
    """Each query head of each row on its own: any head size, any type."""

    def record(self, run: DraftPass, index: int, layer: DraftLayerArrays) -> None:
        shape, scratch, count, launch = run.arrays.shape, run.scratch, run.count, run.launch
        heads, kv_heads, qkv = shape.num_heads, shape.num_kv_heads, scratch.qkv[:count]
        turning, positions = (count, heads + kv_heads), scratch.block_positions[:count]
        gains, eps = (layer.q_norm, layer.k_norm), shape.rms_norm_eps
        launch.launch(head_norm, turning, THREADS, qkv, *gains, heads, kv_heads, eps, run.live)
        launch.launch(rope, turning, THREADS, qkv, run.arrays.rope_table, positions, heads, kv_heads, run.live)
        launch.launch(
            block_attention,
            (count, heads),
            THREADS,
            scratch.attention[:count],
            qkv,
            run.arrays.cache,
            run.state.block_tables,
            run.step.inputs.idx_mapping[: run.requests],
            scratch.context_lens[: run.requests],
            scratch.block_lens[: run.requests],
            index,
            heads,
            layer.window,
            int(layer.causal),
            float(shape.head_dim) ** -0.5,
            run.live,
        )
