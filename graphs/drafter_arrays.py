"""The device arrays of a block drafter, with the shape of each.

N = slots, R = rows (requests), T = token rows of the target's step, Q = 1 + k rows of a block, J = R * k picks, H hidden size,
L draft layers, F = taps * H.

Matrices, codebooks, cache and what products read (features, context, normed, convolved, attention, activated, pick_hidden) are of
the target's storage type; other floats are float32, integers int32.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphs.launch import Array
from graphs.sampling_state import DraftDistribution


@dataclass(frozen=True)
class DraftShape:
    """Constants that a recorder freezes into its launches."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    mask_token_id: int
    input_embedding_scale: float
    output_multiplier: float
    logit_cap: float  # 0 = none


@dataclass(frozen=True)
class DraftConvArrays:
    base_kernel: Array  # [2, taps, H]
    projection: Array  # [2 * taps * G, H]


@dataclass(frozen=True)
class DraftLayerArrays:
    """Weights of one draft layer, and what its queries see."""

    input_norm: Array  # [H]
    qkv: Array  # [(nh + 2 nkv) hd, H]
    qkv_bias: Array | None  # [(nh + 2 nkv) hd]
    q_norm: Array  # [hd]
    k_norm: Array  # [hd]
    out: Array  # [H, nh hd]
    out_bias: Array | None  # [H]
    post_norm: Array  # [H]
    gate_up: Array  # [2 I, H], gate first
    down: Array  # [H, I]
    attention_conv: DraftConvArrays | None
    mlp_conv: DraftConvArrays | None
    k_cache: Array  # [blocks, block_size, nkv, hd]: its part of the cache
    v_cache: Array  # [blocks, block_size, nkv, hd]
    window: int  # positions, 0 = none
    causal: bool


@dataclass(frozen=True)
class SelectorArrays:
    predecessors: Array  # [V, rank]
    successors: Array  # [V, rank]
    projection: Array  # [rank, H]


@dataclass(frozen=True)
class DraftArrays:
    """Weights and cache of a drafter. `embed` and `head` are the target's own arrays."""

    shape: DraftShape
    embed: Array  # [V, H]
    head: Array  # [V, H]
    fc: Array  # [H, F]
    hidden_norm: Array  # [H]
    context_kv: Array  # [L * 2 * nkv * hd, H]: of each layer the rows of k, then of v
    context_bias: Array | None  # [L * 2 * nkv * hd]
    context_k_norms: Array  # [L, hd]
    layers: tuple[DraftLayerArrays, ...]
    final_norm: Array  # [H]
    selector: SelectorArrays | None
    rope_table: Array  # [max_model_len, hd]
    cache: Array  # [L, 2, blocks, block_size, nkv, hd]: pages of the same ids as the target's


@dataclass(frozen=True)
class SelectorScratch:
    ids: Array  # [J, K]
    values: Array  # [J, K]
    gate: Array  # [J, rank]
    scores: Array  # [J, K, K]
    distribution: DraftDistribution  # what drafts are drawn from, for the step that verifies them


@dataclass(frozen=True)
class DraftScratch:
    """Activations of one proposal; their contents mean nothing between steps, `features` between target and proposal."""

    features: Array  # [T, F], written by the target's recorder
    fused: Array  # [C, H]: what fc makes of the features; C: T, or as many rows as can wait where that is more
    context: Array  # [C, H]: its norm
    context_kv: Array  # [C, L * 2 * nkv * hd]
    block_ids: Array  # [N * Q]
    block_positions: Array  # [N * Q]
    pick_rows: Array  # [N * k]
    context_lens: Array  # [N]
    block_lens: Array  # [N]
    block_live: Array  # [2] query rows, picks
    residual: Array  # [N * Q, H]
    normed: Array  # [N * Q, H]
    convolved: Array | None  # [N * Q, H]: the input of a sublayer
    finished: Array | None  # [N * Q, H]: what a sublayer adds
    conv_delta: Array | None  # [N * Q, 2 * taps * G]
    qkv: Array  # [N * Q, (nh + 2 nkv) hd]
    attention: Array  # [N * Q, nh hd]
    projected: Array  # [N * Q, H]
    gate_up: Array  # [N * Q, 2 I]
    activated: Array  # [N * Q, I]
    pick_hidden: Array  # [N * k, H]
    logits: Array  # [N * k, V]
    chosen: Array  # [N * k]
    selector: SelectorScratch | None
