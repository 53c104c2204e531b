"""One forward pass of a dense Llama, Qwen2 or Qwen3 decoder as ordered operations (graphs/ops.py)."""

from __future__ import annotations

from dataclasses import replace

from graphs.arrays import ModelArrays, Scratch, SlotState, StepArrays
from graphs.launch import Array, Launcher
from graphs.ops import ForwardPass, Ops, OpTable
from graphs.plain_ops import PagedAttention, PlainOps
from graphs.taps import TargetTaps


class DecoderTarget:
    """The target of a real checkpoint: embedding, blocks, head, argmax.

    Args:
        model: weights and KV cache on the device.
        scratch: activations, sized for the largest step.
        taps: what a drafter reads of this target; None leaves the launches as they are.
        ops: which set of operations records a step; None is the plain set for all of them.
    """

    def __init__(
        self, model: ModelArrays, scratch: Scratch, taps: TargetTaps | None = None, ops: OpTable | None = None
    ) -> None:
        self.model = model
        self.scratch = scratch
        self.taps = taps
        self.ops = OpTable(PlainOps(PagedAttention())) if ops is None else ops

    @property
    def row_argmax(self) -> Array:
        return self.scratch.row_argmax

    def record(self, launch: Launcher, state: SlotState, step: StepArrays, num_tokens: int, num_logits: int) -> None:
        run = ForwardPass(launch, self.model, self.scratch, state, step, num_tokens)
        ops = self.ops.for_rows(num_tokens)
        record_forward(run, ops, self.taps)
        ops.logits(run, num_logits)


def record_forward(run: ForwardPass, ops: Ops, taps: TargetTaps | None = None) -> None:
    """Embed the rows of input ids and run every block; the residual stream before the final norm ends up in run.residual [T, H]."""
    layers = run.model.layers
    norms_after = [layer.input_norm for layer in layers[1:]] + [run.model.final_norm]
    ops.embed(run, layers[0].input_norm)
    for index, (layer, norm_after) in enumerate(zip(layers, norms_after, strict=True)):
        ops.attention_inputs(run, layer)
        ops.attention(run, layer)
        ops.attention_output(run, layer, layer.post_norm)
        tap = None if taps is None else taps.only(index, run.residual.shape[1])
        ops.feed_forward(run if tap is None else replace(run, tap=tap), layer, norm_after)
        if taps is not None and tap is None:
            taps.record(run.launch, index, run.residual, run.live)
