"""One forward pass of a dense Llama, Qwen2 or Qwen3 decoder as ordered launches."""

from __future__ import annotations

from graphs.arrays import LayerArrays, ModelArrays, Scratch, SlotState, StepArrays
from graphs.launch import Array, Launcher
from graphs.taps import TargetTaps
from kernels.argmax import argmax
from kernels.attention import paged_attention
from kernels.bias import add_bias
from kernels.embed import embed
from kernels.gather import gather_rows
from kernels.head_norm import head_norm
from kernels.kv_store import store_kv
from kernels.rmsnorm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu

THREADS = 128


class DecoderTarget:
    """The target of a real checkpoint: embedding, blocks, head, argmax.

    Args:
        model: weights and KV cache on the device.
        scratch: activations, sized for the largest step.
        taps: what a drafter reads of this target; None leaves the launches as they are.
    """

    def __init__(self, model: ModelArrays, scratch: Scratch, taps: TargetTaps | None = None) -> None:
        self.model = model
        self.scratch = scratch
        self.taps = taps

    @property
    def row_argmax(self) -> Array:
        return self.scratch.row_argmax

    def record(self, launch: Launcher, state: SlotState, step: StepArrays, num_tokens: int, num_logits: int) -> None:
        record_forward(launch, self.model, self.scratch, state, step, num_tokens, self.taps)
        record_logits(launch, self.model, self.scratch, step, num_logits)


def record_forward(
    launch: Launcher,
    model: ModelArrays,
    scratch: Scratch,
    state: SlotState,
    step: StepArrays,
    num_tokens: int,
    taps: TargetTaps | None = None,
) -> None:
    """Embed `num_tokens` rows of input ids and run every block; the final norm ends up in scratch.normed [T, H]."""
    eps = model.shape.rms_norm_eps
    live = step.inputs.num_tokens
    residual, normed = scratch.residual[:num_tokens], scratch.normed[:num_tokens]
    projected = scratch.projected[:num_tokens]
    gate_up, activated = scratch.gate_up[:num_tokens], scratch.activated[:num_tokens]

    launch.launch(embed, num_tokens, THREADS, residual, model.embed, step.input_token_ids[:num_tokens], live)
    launch.launch(rms_norm, num_tokens, THREADS, normed, residual, model.layers[0].input_norm, eps, live)
    norms_after = [layer.input_norm for layer in model.layers[1:]] + [model.final_norm]
    for index, (layer, norm_after) in enumerate(zip(model.layers, norms_after, strict=True)):
        _record_attention(launch, model, layer, scratch, state, step, num_tokens)
        launch.launch(add_rms_norm, num_tokens, THREADS, normed, residual, projected, layer.post_norm, eps, live)
        launch.matmul(gate_up, normed, layer.gate_up, live)
        launch.launch(swiglu, num_tokens, THREADS, activated, gate_up, live)
        launch.matmul(projected, activated, layer.down, live)
        launch.launch(add_rms_norm, num_tokens, THREADS, normed, residual, projected, norm_after, eps, live)
        if taps is not None:
            taps.record(launch, index, residual, live)


def _record_attention(
    launch: Launcher,
    model: ModelArrays,
    layer: LayerArrays,
    scratch: Scratch,
    state: SlotState,
    step: StepArrays,
    num_tokens: int,
) -> None:
    """scratch.normed -> scratch.projected: q, k, v, the paged KV store, causal attention, output projection."""
    shape, live = model.shape, step.inputs.num_tokens
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    qkv, attention = scratch.qkv[:num_tokens], scratch.attention[:num_tokens]
    positions = step.positions[:num_tokens]

    launch.matmul(qkv, scratch.normed[:num_tokens], layer.qkv, live)
    if layer.qkv_bias is not None:
        launch.launch(add_bias, num_tokens, THREADS, qkv, layer.qkv_bias, live)
    if layer.q_norm is not None and layer.k_norm is not None:
        eps = shape.rms_norm_eps
        launch.launch(head_norm, num_tokens, THREADS, qkv, layer.q_norm, layer.k_norm, heads, kv_heads, eps, live)
    launch.launch(rope, num_tokens, THREADS, qkv, model.rope_table, positions, heads, kv_heads, live)
    slots = step.slot_mapping[:num_tokens]
    launch.launch(store_kv, num_tokens, THREADS, layer.k_cache, layer.v_cache, qkv, slots, heads, live)
    launch.launch(
        paged_attention,
        (num_tokens, heads),
        THREADS,
        attention,
        qkv,
        layer.k_cache,
        layer.v_cache,
        state.block_tables,
        step.token_slot[:num_tokens],
        positions,
        heads,
        float(shape.head_dim) ** -0.5,
        live,
    )
    launch.matmul(scratch.projected[:num_tokens], attention, layer.out, live)


def record_logits(launch: Launcher, model: ModelArrays, scratch: Scratch, step: StepArrays, num_logits: int) -> None:
    """scratch.normed -> logits of the rows of logits_indices alone, and their argmax."""
    live = step.inputs.num_logits
    rows, logits = scratch.logit_rows[:num_logits], scratch.logits[:num_logits]
    launch.launch(gather_rows, num_logits, THREADS, rows, scratch.normed, step.logits_indices[:num_logits], live)
    launch.matmul(logits, rows, model.head, live)
    launch.launch(argmax, num_logits, THREADS, scratch.row_argmax[:num_logits], logits, model.shape.vocab_size, live)
