"""The fused set of operations: a decoder block in six launches, norms and residual additions inside the products.

For few rows: a product reads its weights once for every sixteen. The order in which a row's numbers are added up is fixed by the
model's shape alone (kernels/tile.py, kernels/attend.py), so what a row yields never depends on the batch: recorded for every step,
this set is `numerics: batch_invariant`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphs.arrays import DecoderShape, LayerArrays
from graphs.launch import Array
from graphs.ops import AttentionOps, ForwardPass
from graphs.plain_ops import Stripes, norm_threads, record_argmax
from kernels.attend import MAX_HEAD_DIM
from kernels.bias import add_bias
from kernels.head import best_of_stripes, gather_norm, project_argmax
from kernels.project import embed_squares, norm_gate_up, norm_project, project_residual
from kernels.rmsnorm import rms_norm
from kernels.tile import CHUNK, TILE_ROWS

THREADS = 128

_WARPS_OF_A_PRODUCT = 4096
"""Warps beyond which sharing a tile among several no longer fills the GPU better."""

_CHUNKS_A_WARP = 4
"""Chunks of columns that a warp should have: as many loads as it keeps in flight."""

_STRIPES = 1536

_NORM_IN_PRODUCT_BYTES = 48 * 1024
"""Rows of the residual that a block of a product may read again; beyond, one launch that normalises them costs less."""


@dataclass(frozen=True)
class Split:
    """How a product is laid out, from the shape of its weights alone: the batch must have no say in the order of a sum.

    Attributes:
        warps: warps that share the columns of a tile.
        grid: blocks of the launch.
        multiplying: warps of a block that multiply.
    """

    warps: int
    grid: int
    multiplying: int

    @classmethod
    def of(cls, outputs: int, depth: int, *, most: int) -> Split:
        """`outputs` rows of weights of `depth` columns; at most `most` warps a tile."""
        tiles, chunks, warps = -(-outputs // TILE_ROWS), -(-depth // CHUNK), 1
        while 2 * warps <= most and chunks // (2 * warps) >= _CHUNKS_A_WARP and 2 * warps * tiles <= _WARPS_OF_A_PRODUCT:
            warps *= 2
        multiplying = max(warps, 4)
        return cls(warps, -(-tiles // (multiplying // warps)), multiplying)


def stripes_of(vocab_size: int, depth: int) -> int:
    """Stripes of the head, each with a best column of its own: the shape of best_value [stripes, J]."""
    groups = Split.of(vocab_size, depth, most=8).grid
    return -(-groups // -(-groups // _STRIPES))


def why_not_fused(shape: DecoderShape, dtype: np.dtype[np.generic]) -> str | None:
    """Why a model of this shape and type has no fused operations, or None. float32 takes almost any shape, slowly on a GPU."""
    if shape.head_dim > MAX_HEAD_DIM:
        return f"head_dim = {shape.head_dim}: split attention takes {MAX_HEAD_DIM} at most"
    if dtype == np.float32:
        return None
    if shape.head_dim not in (64, 128):
        return f"head_dim = {shape.head_dim}: split attention takes 64 or 128 in 16 bits"
    widths = {"hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size}
    for name, width in widths.items():
        if width % 8:
            return f"{name} = {width}: rows of weights must begin at 16 bytes, a multiple of 8 elements"
    return None


@dataclass(frozen=True)
class FusedScratch:
    """Scratch of the fused set beside the activations."""

    squares: Array  # float32 [T, ceil(H / 8)]
    best_value: Array  # float32 [stripes, J]
    best_column: Array  # int32 [stripes, J]


@dataclass(frozen=True)
class FusedOps:
    """Between operations scratch.squares holds the sums of squares of the residual.

    Attributes:
        scratch: sized for the largest step.
        attention_ops: how attention is computed.
        batch_invariant: steps are laid out alike whatever their rows: the norm is never taken into the product for some and done
            before it for others.
        stripes: the head is the library's product, with this scratch for the argmax behind it; None: our own.
    """

    scratch: FusedScratch
    attention_ops: AttentionOps
    batch_invariant: bool = False
    stripes: Stripes | None = None

    def embed(self, run: ForwardPass, norm: Array) -> None:
        tokens = run.num_tokens
        ids = run.step.input_token_ids[:tokens]
        run.launch.launch(embed_squares, tokens, THREADS, run.residual, self._squares(run), run.model.embed, ids, run.live)

    def attention_inputs(self, run: ForwardPass, layer: LayerArrays) -> None:
        tokens, eps, qkv = run.num_tokens, run.model.shape.rms_norm_eps, run.scratch.qkv[: run.num_tokens]
        split = Split.of(*layer.qkv.shape, most=4)
        x = self._product_input(run, layer.qkv, layer.input_norm)
        threads = 32 * (split.multiplying + 1)
        arguments = (qkv, x, layer.input_norm, self._squares(run), layer.qkv, eps, split.warps, run.live)
        run.launch.launch(norm_project, split.grid, threads, *arguments)
        if layer.qkv_bias is not None:
            run.launch.launch(add_bias, tokens, THREADS, qkv, layer.qkv_bias, run.live)

    def attention(self, run: ForwardPass, layer: LayerArrays) -> None:
        self.attention_ops.record(run, layer)

    def attention_output(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self._project_residual(run, run.scratch.attention[: run.num_tokens], layer.out)

    def feed_forward(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self.gate_up(run, layer)
        self.down(run, layer)

    def gate_up(self, run: ForwardPass, layer: LayerArrays) -> None:
        """Residual -> norm -> scratch.activated."""
        activated, eps = run.scratch.activated[: run.num_tokens], run.model.shape.rms_norm_eps
        outputs, depth = layer.gate_up.shape
        split = Split.of(outputs // 2, depth, most=4)
        x = self._product_input(run, layer.gate_up, layer.post_norm)
        threads = 32 * (split.multiplying + 1)
        arguments = (activated, x, layer.post_norm, self._squares(run), layer.gate_up, eps, split.warps, run.live)
        run.launch.launch(norm_gate_up, split.grid, threads, *arguments)

    def down(self, run: ForwardPass, layer: LayerArrays) -> None:
        """residual += scratch.activated @ down.T."""
        self._project_residual(run, run.scratch.activated[: run.num_tokens], layer.down)

    def logits(self, run: ForwardPass, num_logits: int) -> None:
        launch, scratch, live, shape = run.launch, run.scratch, run.step.inputs.num_logits, run.model.shape
        rows, logits = scratch.logit_rows[:num_logits], scratch.logits[:num_logits]
        indices, eps = run.step.logits_indices[:num_logits], shape.rms_norm_eps
        threads = norm_threads(rows.shape[1])
        launch.launch(gather_norm, num_logits, threads, rows, scratch.residual, run.model.final_norm, indices, eps, live)
        if self.stripes is not None:
            launch.matmul(logits, rows, run.model.head, live)
            record_argmax(run, num_logits, self.stripes)
            return
        best_value, best_column = self.scratch.best_value, self.scratch.best_column
        split = Split.of(*run.model.head.shape, most=8)
        stripes, threads = best_value.shape[0], 32 * split.multiplying
        arguments = (logits, best_value, best_column, rows, run.model.head, shape.vocab_size, split.warps, live)
        launch.launch(project_argmax, stripes, threads, *arguments)
        out = scratch.row_argmax[:num_logits]
        launch.launch(best_of_stripes, num_logits, THREADS, out, best_value, best_column, live)

    def _squares(self, run: ForwardPass) -> Array:
        return self.scratch.squares[: run.num_tokens]

    def _project_residual(self, run: ForwardPass, x: Array, weight: Array) -> None:
        split = Split.of(*weight.shape, most=8)
        threads = 32 * split.multiplying
        arguments = (run.residual, self._squares(run), x, weight, split.warps, run.live)
        run.launch.launch(project_residual, split.grid, threads, *arguments)

    def _product_input(self, run: ForwardPass, weight: Array, gain: Array) -> Array:
        """The residual itself, or its norm where that costs less; always the norm in float16, whose range a residual may leave."""
        tokens = run.num_tokens
        large = not self.batch_invariant and 4 * tokens * run.residual.shape[1] > _NORM_IN_PRODUCT_BYTES
        if weight.dtype == np.float16 or (weight.dtype == np.uint16 and large):
            normed, eps = run.scratch.normed[:tokens], run.model.shape.rms_norm_eps
            run.launch.launch(rms_norm, tokens, norm_threads(normed.shape[1]), normed, run.residual, gain, eps, run.live)
            return normed
        return run.residual
