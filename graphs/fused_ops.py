"""The fused set of operations: a decoder block in six launches, norms and residual additions inside the products.

For few rows: a product reads its weights once for every eight. Where a product is the library's, what ours would have done besides
it is a launch of its own (kernels/behind_product.py). In ours the order in which a row's numbers are added up is fixed by the
model's shape alone (kernels/tile.py, kernels/attend_step.py), so what a row yields never depends on the batch: without the library,
recorded for every step, this set is `numerics: batch_invariant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graphs.arrays import DecoderShape, LayerArrays
from graphs.flow_ops import FlowLayout
from graphs.held_ops import HeldLayout
from graphs.launch import Array
from graphs.ops import AttentionOps, ForwardPass
from graphs.plain_ops import Stripes, norm_threads, record_add_norm, record_argmax
from graphs.product_forms import Form
from graphs.tile_layouts import HEAD_THREADS, Layout, layouts_of
from graphs.wide_head_ops import WideHead
from graphs.wide_ops import WideLayout
from kernels.attend_step import MAX_HEAD_DIM
from kernels.behind_product import EIGHT, add_squares, norm_swiglu
from kernels.bias import add_bias
from kernels.embed_norm import embed_norm
from kernels.embed_squares import embed_squares
from kernels.head import best_of_stripes, gather_norm, project_argmax
from kernels.project import (
    norm_gate_up,
    norm_project,
    norm_project_two,
    project_residual,
    project_residual_two,
)
from kernels.project_tap import project_residual_tap, project_residual_two_tap
from kernels.rmsnorm import rms_norm
from kernels.tile import TILE_TOKENS

THREADS = 128

_SHARING_THREADS = 64
"""Of a block that shares a row with others: few, so that many multiprocessors do."""

_OURS = object()
"""The usual form of a product: one of ours, whichever."""


def why_not_fused(shape: DecoderShape, dtype: np.dtype[np.generic]) -> str | None:
    """Why a model of this shape and type has no fused operations, or None. float32 takes almost any shape, slowly on a GPU."""
    if shape.head_dim > MAX_HEAD_DIM:
        return f"head_dim = {shape.head_dim}: attention takes {MAX_HEAD_DIM} at most"
    if dtype == np.float32:
        return None
    if shape.head_dim not in (64, 128):
        return f"head_dim = {shape.head_dim}: attention takes 64 or 128 in 16 bits"
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
    """Between operations scratch.normed holds residual * gain of the norm that comes next, scratch.squares the sums of squares of
    the residual; or scratch.normed is the norm itself (`_whole_norm`), and nobody looks at the squares.

    Attributes:
        scratch: sized for the largest step.
        attention_ops: how attention is computed.
        stripes: the head is the library's product, with this scratch for the argmax behind it; None: our own.
        layouts: of products by name (`forms_of`) where another than the usual one was measured faster; None: the library's
            product is faster.
    """

    scratch: FusedScratch
    attention_ops: AttentionOps
    stripes: Stripes | None = None
    layouts: Mapping[str, Form | None] = field(default_factory=dict)

    def embed(self, run: ForwardPass, norm: Array) -> None:
        tokens, written = run.num_tokens, self._residual_and_norm(run)
        ids = run.step.input_token_ids[:tokens]
        if self._whole_norm(run, "down"):
            eps, threads = run.model.shape.rms_norm_eps, norm_threads(-(-run.residual.shape[1] // EIGHT))
            arguments = (*written[:2], run.model.embed, norm, ids, eps, run.live)
            run.launch.launch(embed_norm, tokens, threads, *arguments)
            return
        run.launch.launch(
            embed_squares, _sharing_grid(run.residual), _SHARING_THREADS, *written, run.model.embed, norm, ids, run.live
        )

    def attention_inputs(self, run: ForwardPass, layer: LayerArrays) -> None:
        tokens, qkv = run.num_tokens, run.scratch.qkv[: run.num_tokens]
        layout, eps = self._layout("qkv", layer.qkv), run.model.shape.rms_norm_eps
        if layout is None:
            run.launch.matmul(qkv, run.scratch.normed[:tokens], layer.qkv, run.live)
        elif isinstance(layout, FlowLayout):
            layout.record_project(run, qkv, *self._product_input(run), layer.qkv, int(self._whole_norm(run, "down")))
        else:
            threads = 32 * (layout.warps + 1)
            arguments = (qkv, *self._product_input(run), layer.qkv, eps, int(self._whole_norm(run, "down")), layout.parts, run.live)
            kernel = norm_project if layout.slabs == 1 else norm_project_two
            run.launch.launch(layout.kernel(kernel), layout.grid, threads, *arguments)
        if layer.qkv_bias is not None:
            run.launch.launch(add_bias, tokens, THREADS, qkv, layer.qkv_bias, run.live)

    def attention(self, run: ForwardPass, layer: LayerArrays) -> None:
        self.attention_ops.record(run, layer)

    def attention_output(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self._project_residual(run, "out", run.scratch.attention[: run.num_tokens], layer.out, norm)

    def feed_forward(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        self.gate_up(run, layer)
        self.down(run, layer, norm)

    def gate_up(self, run: ForwardPass, layer: LayerArrays) -> None:
        """Residual -> norm -> scratch.activated."""
        activated, eps = run.scratch.activated[: run.num_tokens], run.model.shape.rms_norm_eps
        if isinstance(wide := self.layouts.get("gate_up"), WideLayout):
            wide.record_gate_up(run, layer)
            return
        layout = self._layout("gate_up", layer.gate_up)
        if layout is None:
            normed, squares = self._product_input(run)
            gate_up = run.scratch.gate_up[: run.num_tokens]
            run.launch.matmul(gate_up, normed, layer.gate_up, run.live)
            behind = (activated, gate_up, squares, normed.shape[1], eps, int(self._whole_norm(run, "out")), run.live)
            run.launch.launch(norm_swiglu, _sharing_grid(activated), _SHARING_THREADS, *behind)
            return
        if isinstance(layout, FlowLayout):
            layout.record_gate_up(run, *self._product_input(run), layer, int(self._whole_norm(run, "out")))
            return
        threads = 32 * (layout.warps + 1)
        arguments = (
            activated,
            *self._product_input(run),
            layer.gate_up,
            eps,
            int(self._whole_norm(run, "out")),
            layout.parts,
            run.live,
        )
        run.launch.launch(layout.kernel(norm_gate_up), layout.grid, threads, *arguments)

    def down(self, run: ForwardPass, layer: LayerArrays, norm: Array) -> None:
        """residual += scratch.activated @ down.T."""
        self._project_residual(run, "down", run.scratch.activated[: run.num_tokens], layer.down, norm)

    def logits(self, run: ForwardPass, num_logits: int) -> None:
        launch, scratch, live = run.launch, run.scratch, run.step.inputs.num_logits
        rows, logits = scratch.logit_rows[:num_logits], scratch.logits[:num_logits]
        indices, eps = run.step.logits_indices[:num_logits], run.model.shape.rms_norm_eps
        threads = norm_threads(-(-rows.shape[1] // EIGHT))
        launch.launch(gather_norm, num_logits, threads, rows, scratch.residual, run.model.final_norm, indices, eps, live)
        if self.stripes is not None:
            launch.matmul(logits, rows, run.model.head, live)
            record_argmax(run, num_logits, self.stripes)
            return
        best = self.record_head(run, logits, rows, live)
        launch.launch(best_of_stripes, num_logits, THREADS, scratch.row_argmax[:num_logits], *best, live)

    def reads_head_once(self, num_rows: int) -> bool:
        """Is our own head one that reads its weights once for so many rows?"""
        return num_rows <= TILE_TOKENS or "wide_head" in self.layouts

    def record_head(self, run: ForwardPass, logits: Array, rows: Array, live: Array) -> tuple[Array, Array]:
        """logits = rows @ head.T by our own head; returned are value and column of the best of each stripe, for best_of_stripes."""
        best = _packed(self.scratch.best_value, rows.shape[0]), _packed(self.scratch.best_column, rows.shape[0])
        layout = self.layouts.get("head")
        if rows.shape[0] > TILE_TOKENS:
            layout = self.layouts.get("wide_head", layout)
        if isinstance(layout, FlowLayout | HeldLayout | WideHead):
            return layout.record_head(run, logits, best, rows, live)
        arguments = (logits, *best, rows, run.model.head, run.model.shape.vocab_size, live)
        run.launch.launch(project_argmax, best[0].shape[0], HEAD_THREADS, *arguments)
        return best

    def _residual_and_norm(self, run: ForwardPass) -> tuple[Array, Array, Array]:
        tokens = run.num_tokens
        return run.residual, run.scratch.normed[:tokens], self.scratch.squares[:tokens]

    def _product_input(self, run: ForwardPass) -> tuple[Array, Array]:
        return self._residual_and_norm(run)[1:]

    def _layout(self, name: str, weight: Array) -> Layout | FlowLayout | None:
        layout = self.layouts[name] if name in self.layouts else layouts_of(name, *weight.shape)[0]
        assert not isinstance(layout, WideLayout | HeldLayout | WideHead), f"{name}: no form of many rows, or of a head"
        return layout

    def _project_residual(self, run: ForwardPass, name: str, x: Array, weight: Array, norm: Array) -> None:
        tap = run.tap if name == "down" else None
        if isinstance(wide := self.layouts.get(name), WideLayout):
            wide.record_residual(run, x, weight, norm, tap)
            return
        layout, written = self._layout(name, weight), self._residual_and_norm(run)
        tokens, launch, whole = run.num_tokens, run.launch, self._whole_norm(run, name)
        if isinstance(layout, FlowLayout):
            layout.record_residual(run, written, x, weight, norm, tapped=tap is not None)
            if whole:
                self._norm(run, norm)
            return
        if layout is not None:
            threads, last = 32 * layout.warps, (layout.parts, run.live)
            if tap is None:
                kernel = project_residual if layout.slabs == 1 else project_residual_two
                launch.launch(layout.kernel(kernel), layout.grid, threads, *written, x, weight, norm, *last)
            else:
                kernel = project_residual_tap if layout.slabs == 1 else project_residual_two_tap
                features = tap.features[:tokens]
                launch.launch(layout.kernel(kernel), layout.grid, threads, *written, features, x, weight, norm, tap.column, *last)
            if whole:
                self._norm(run, norm)
            return
        projected = run.scratch.projected[:tokens]
        launch.matmul(projected, x, weight, run.live)
        if whole:
            record_add_norm(run, norm, tap)
            return
        launch.launch(add_squares, _sharing_grid(projected), _SHARING_THREADS, *written, projected, norm, run.live)
        if tap is not None:
            run.record_tap()

    def _scaled(self, run: ForwardPass) -> int:
        """float16: the residual may leave its range, its norm does not."""
        return int(run.scratch.normed.dtype == np.float16)

    def _whole_norm(self, run: ForwardPass, name: str) -> bool:
        """Is scratch.normed the norm itself behind `name`? In front of a library's qkv nobody else would divide by the rms, and
        between two of the library's products the whole norm costs no more than what it needs. Wide products take and yield nothing
        else."""
        behind = ("qkv",) if name == "down" else ("out", "gate_up")
        wide = {product for product, layout in self.layouts.items() if isinstance(layout, WideLayout)}
        if name in wide or (name == "out" and "gate_up" in wide):
            return True
        return bool(self._scaled(run)) or all(self.layouts.get(product, _OURS) is None for product in behind)

    def _norm(self, run: ForwardPass, gain: Array) -> None:
        """scratch.normed = the norm itself."""
        normed, eps = run.scratch.normed[: run.num_tokens], run.model.shape.rms_norm_eps
        threads = norm_threads(normed.shape[1])
        run.launch.launch(rms_norm, run.num_tokens, threads, normed, run.residual, gain, eps, run.live)


def _sharing_grid(out: Array) -> tuple[int, int]:
    """Blocks that share the rows of [T, columns]."""
    return out.shape[0], -(-out.shape[1] // (EIGHT * _SHARING_THREADS))


def _packed(scratch: Array, rows: int) -> Array:
    """[S, J] as [S, rows] with nothing between its rows: a step of few logits rows reads the bests of all stripes, and where the
    scratch is for many, each of them would be in a line of its own."""
    stripes, most = scratch.shape
    return scratch.reshape((stripes * most,))[: stripes * rows].reshape((stripes, rows))
