"""A block drafter on a device: weights, its own pages of keys and values, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.arrays import ModelArrays
from graphs.draft_backlog import BacklogArrays
from graphs.drafter_arrays import (
    DraftArrays,
    DraftConvArrays,
    DraftLayerArrays,
    DraftScratch,
    DraftShape,
    SelectorArrays,
    SelectorScratch,
)
from graphs.executor import widened
from graphs.launch import Array
from graphs.sampling_state import DraftDistribution
from runtime.checkpoint.random_tensor import ConstantMemory
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.device import Device
from runtime.models.rope import rope_table
from runtime.speculators.dflash_config import DraftSpec
from runtime.speculators.dflash_weights import DraftConvWeights, DraftWeights
from runtime.step_buffers import StepSizes


def draft_cache_bytes(spec: DraftSpec, num_blocks: int, block_size: int, itemsize: int = 4) -> int:
    """Bytes of K and V of all draft layers."""
    return num_blocks * block_size * spec.context_size * itemsize


def draft_streamed_bytes(drafter: DraftArrays) -> int:
    """Bytes of weights that every proposal reads once: all matrices, the target's head among them."""
    matrices = [drafter.fc, drafter.context_kv, drafter.head]
    for layer in drafter.layers:
        convolutions = [conv.projection for conv in (layer.attention_conv, layer.mlp_conv) if conv is not None]
        matrices += [layer.qkv, layer.out, layer.gate_up, layer.down, *convolutions]
    return sum(matrix.nbytes for matrix in matrices)


def upload_drafter(
    device: Device,
    spec: DraftSpec,
    weights: DraftWeights,
    target: ModelArrays,
    *,
    max_model_len: int,
    num_blocks: int,
    block_size: int,
) -> DraftArrays:
    """Put the weights into constant device memory and allocate the drafter's pages.

    The pages have the ids of the target's: a block that a request holds is its own in both caches, so that allocation, preemption
    and reuse need no second table.
    """

    constant = ConstantMemory(device, "draft.")

    def vector(name: str, values: Any) -> Array:
        return constant(name, values if values.dtype == np.float32 else widened(values))

    def optional(name: str, values: Any) -> Array | None:
        return None if values is None else vector(name, values)

    def conv(name: str, values: DraftConvWeights | None) -> DraftConvArrays | None:
        if values is None:
            return None
        return DraftConvArrays(
            vector(f"{name}.base_kernel", values.base_kernel), constant(f"{name}.projection", values.projection)
        )

    pages = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
    cache = device.array("draft.kv_cache", (spec.num_layers, 2, *pages), STORAGE[weights.dtype])
    layers = tuple(
        DraftLayerArrays(
            input_norm=vector(f"layers.{i}.input_norm", layer.input_norm),
            qkv=constant(f"layers.{i}.qkv", layer.qkv),
            qkv_bias=optional(f"layers.{i}.qkv_bias", layer.qkv_bias),
            q_norm=vector(f"layers.{i}.q_norm", layer.q_norm),
            k_norm=vector(f"layers.{i}.k_norm", layer.k_norm),
            out=constant(f"layers.{i}.out", layer.out),
            out_bias=optional(f"layers.{i}.out_bias", layer.out_bias),
            post_norm=vector(f"layers.{i}.post_norm", layer.post_norm),
            gate_up=constant(f"layers.{i}.gate_up", layer.gate_up),
            down=constant(f"layers.{i}.down", layer.down),
            attention_conv=conv(f"layers.{i}.attention_conv", layer.attention_conv),
            mlp_conv=conv(f"layers.{i}.mlp_conv", layer.mlp_conv),
            k_cache=cache[i : i + 1, 0:1].reshape(pages),
            v_cache=cache[i : i + 1, 1:2].reshape(pages),
            window=attention.window,
            causal=attention.causal,
        )
        for i, (layer, attention) in enumerate(zip(weights.layers, spec.attention, strict=True))
    )
    selector = None
    if weights.selector is not None:
        selector = SelectorArrays(
            constant("selector.predecessors", weights.selector.predecessors),
            constant("selector.successors", weights.selector.successors),
            constant("selector.projection", weights.selector.projection),
        )
    return DraftArrays(
        shape=DraftShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab_size,
            rms_norm_eps=spec.rms_norm_eps,
            mask_token_id=spec.mask_token_id,
            input_embedding_scale=spec.input_embedding_scale,
            output_multiplier=spec.output_multiplier,
            logit_cap=spec.final_logit_softcapping,
        ),
        embed=target.embed,
        head=target.head,
        fc=constant("fc", weights.fc),
        hidden_norm=vector("hidden_norm", weights.hidden_norm),
        context_kv=constant("context_kv", weights.context_kv),
        context_bias=optional("context_bias", weights.context_bias),
        context_k_norms=vector("context_k_norms", weights.context_k_norms),
        layers=layers,
        final_norm=vector("final_norm", weights.final_norm),
        selector=selector,
        rope_table=constant("rope_table", rope_table(spec.rope, spec.head_dim, max_model_len)),
        cache=cache,
    )


BACKLOG_ROWS = 256
"""Token rows that wait at most, all slots together, where there are not more slots. An H200 makes keys and values of so many in
hardly more time than of a few."""


def backlog_depth(max_num_seqs: int) -> int:
    """Consecutive decode steps whose rows may wait."""
    return max(1, BACKLOG_ROWS // max_num_seqs)


def allocate_backlog(device: Device, spec: DraftSpec, sizes: StepSizes, dtype: WeightDtype = "float32") -> BacklogArrays:
    """Memory for rows that wait, and none that does."""
    slots, depth = sizes.max_num_seqs, backlog_depth(sizes.max_num_seqs)
    rows = slots * depth
    cells, positions = (device.array(f"draft.kept_{name}", (rows,), np.int32) for name in ("cells", "positions"))
    device.upload(cells, np.full(rows, -1, np.int32))
    # What nothing waits at is multiplied with the rest, and thrown away: it has to be a position, and numbers.
    device.upload(positions, np.zeros(rows, np.int32))
    features = device.array("draft.kept_features", (rows, spec.feature_size), STORAGE[dtype])
    device.upload(features, np.zeros(features.shape, features.dtype))
    return BacklogArrays(
        features=features,
        positions=positions,
        cells=cells,
        slots=device.constant("draft.kept_slots", np.repeat(np.arange(slots, dtype=np.int32), depth)),
        counts=device.constant("draft.kept_counts", depth * np.arange(slots + 1, dtype=np.int32)),
    )


def allocate_draft_scratch(device: Device, spec: DraftSpec, sizes: StepSizes, dtype: WeightDtype = "float32") -> DraftScratch:
    """Activations of the largest step: what products read is held in `dtype`, the rest in float32."""
    tokens, slots, k = sizes.max_num_batched_tokens, sizes.max_num_seqs, sizes.num_speculative_tokens
    entering = max(tokens, slots * backlog_depth(slots))
    queries, picks, hidden = slots * (1 + k), slots * k, spec.hidden_size

    def activations(name: str, *shape: int) -> Array:
        return device.array(f"draft.{name}", shape, np.float32)

    def operands(name: str, *shape: int) -> Array:
        return device.array(f"draft.{name}", shape, STORAGE[dtype])

    def integers(name: str, *shape: int) -> Array:
        return device.array(f"draft.{name}", shape, np.int32)

    convolved, finished, conv_delta, selector = None, None, None, None
    if spec.version == 2:
        groups = spec.hidden_size // spec.conv_group_size
        convolved, finished = operands("convolved", queries, hidden), activations("finished", queries, hidden)
        conv_delta = activations("conv_delta", queries, 2 * spec.conv_kernel_size * groups)
        count = spec.selector_top_k
        selector = SelectorScratch(
            ids=integers("candidate_ids", picks, count),
            values=activations("candidate_values", picks, count),
            gate=activations("selector_gate", picks, spec.selector_rank),
            scores=activations("selector_scores", picks, count, count),
            distribution=DraftDistribution(integers("q_ids", slots, k, count), activations("q_probs", slots, k, count)),
        )
    return DraftScratch(
        features=operands("features", tokens, spec.feature_size),
        fused=activations("fused", entering, hidden),
        context=operands("context", entering, hidden),
        context_kv=activations("context_kv_rows", entering, spec.context_size),
        block_ids=integers("block_ids", queries),
        block_positions=integers("block_positions", queries),
        pick_rows=integers("pick_rows", picks),
        context_lens=integers("context_lens", slots),
        block_lens=integers("block_lens", slots),
        block_live=integers("block_live", 2),
        residual=activations("residual", queries, hidden),
        normed=operands("normed", queries, hidden),
        convolved=convolved,
        finished=finished,
        conv_delta=conv_delta,
        qkv=activations("qkv_rows", queries, spec.qkv_size),
        attention=operands("attention", queries, spec.q_size),
        projected=activations("projected", queries, hidden),
        gate_up=activations("gate_up", queries, 2 * spec.intermediate_size),
        activated=operands("activated", queries, spec.intermediate_size),
        pick_hidden=operands("pick_hidden", picks, hidden),
        logits=activations("logits", picks, spec.vocab_size),
        chosen=integers("chosen", picks),
        selector=selector,
    )
