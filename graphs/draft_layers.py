"""Layers of a DFlash drafter by the target's sets of operations (graphs/ops.py): they are blocks as a target's are, but for who
attends to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphs.arrays import DecoderShape, LayerArrays, ModelArrays, Scratch, StepArrays, StepInputs
from graphs.draft_pass import BlockAttention, DraftPass
from graphs.drafter_arrays import DraftArrays, DraftScratch
from graphs.fused_ops import FusedOps
from graphs.launch import Array
from graphs.ops import ForwardPass, HeadOps, OpTable
from graphs.plain_ops import norm_threads
from kernels.behind_product import EIGHT
from kernels.head import gather_norm


def as_model(arrays: DraftArrays, shape: DecoderShape) -> ModelArrays:
    """A drafter without convolutions as the sets of operations know a model."""
    names = LayerArrays.__dataclass_fields__
    layers = tuple(LayerArrays(**{name: getattr(layer, name) for name in names}) for layer in arrays.layers)
    return ModelArrays(shape, arrays.embed, layers, arrays.final_norm, arrays.head, arrays.rope_table)


def as_scratch(scratch: DraftScratch) -> Scratch:
    return Scratch(
        residual=scratch.residual,
        normed=scratch.normed,
        qkv=scratch.qkv,
        attention=scratch.attention,
        projected=scratch.projected,
        gate_up=scratch.gate_up,
        activated=scratch.activated,
        logit_rows=scratch.pick_hidden,
        logits=scratch.logits,
        row_argmax=scratch.chosen,
    )


@dataclass(frozen=True)
class LayersAsTarget:
    """For drafters without convolutions, without a bias behind attention, whose embeddings are not scaled.

    Attributes:
        shape: of the drafter.
        table: which set takes how many query rows.
        heads: which set's head the target's steps of so many rows take; None: the library's product.
    """

    shape: DecoderShape
    table: OpTable
    heads: OpTable | None = None

    def record(self, run: DraftPass, attention: BlockAttention) -> None:
        """scratch.block_ids -> scratch.residual behind the last layer."""
        forward, ops = self._forward(run), self.table.for_rows(run.count)
        model = forward.model
        norms_after = [layer.input_norm for layer in model.layers[1:]] + [model.final_norm]
        ops.embed(forward, model.layers[0].input_norm)
        for index, (layer, norm_after) in enumerate(zip(model.layers, norms_after, strict=True)):
            ops.attention_inputs(forward, layer)
            attention.record(run, index, run.arrays.layers[index])
            ops.attention_output(forward, layer, layer.post_norm)
            ops.feed_forward(forward, layer, norm_after)

    def record_hidden(self, run: DraftPass, picks: int) -> Array:
        """The final norm of the masks' rows."""
        hidden, residual = run.scratch.pick_hidden[:picks], run.scratch.residual
        where = (run.scratch.pick_rows[:picks], self.shape.rms_norm_eps, run.live_picks)
        threads = norm_threads(-(-hidden.shape[1] // EIGHT))
        run.launch.launch(gather_norm, picks, threads, hidden, residual, run.arrays.final_norm, *where)
        return hidden

    def record_best(self, run: DraftPass, logits: Array, hidden: Array) -> tuple[Array, Array] | None:
        """Logits of `hidden`, with value and column of the best of each stripe for best_of_stripes, by the target's own head. None,
        and nothing recorded, where that is the library's, or would read its weights more than once."""
        ops = None if self.heads is None else self.heads.for_rows(hidden.shape[0])
        head = ops.head if isinstance(ops, HeadOps) else ops
        if not isinstance(head, FusedOps) or head.stripes is not None or not head.reads_head_once(hidden.shape[0]):
            return None
        return head.record_head(self._forward(run), logits, hidden, run.live_picks)

    def _forward(self, run: DraftPass) -> ForwardPass:
        """The block's rows as a step: of what a step has, its layers read the ids and the number of live rows alone."""
        unread = run.scratch.block_ids
        inputs = StepInputs(run.scratch.block_live, unread, unread, unread, unread, unread)
        fields: dict[str, Any] = dict.fromkeys(StepArrays.__dataclass_fields__, unread)
        step, model = StepArrays(**{**fields, "inputs": inputs}), as_model(run.arrays, self.shape)
        return ForwardPass(run.launch, model, as_scratch(run.scratch), run.state, step, run.count)
