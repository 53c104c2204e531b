"""A block drafter of random weights for the toy target: what it drafts in plain NumPy, the oracle of the gates, and on a device.

It reads the toy's residual streams through taps and keeps keys and values in pages of its own, so that a cell that was stored too
early, too late, twice or not at all, or belongs to another request, changes the ids that it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from graphs.propose_dflash import DFlashProposer
from kernels.toy import VOCABULARY
from runtime.device import Device
from runtime.models.rope import RopeSpec, rope_table
from runtime.speculators.dflash_config import DraftAttention, DraftSpec
from runtime.speculators.dflash_ops import build_draft_ops
from runtime.speculators.dflash_upload import allocate_backlog, allocate_draft_scratch, upload_drafter
from runtime.speculators.dflash_weights import DraftWeights, draft_weights, fill_context
from runtime.step_buffers import StepSizes

Floats: TypeAlias = npt.NDArray[np.float64]
Version = Literal[1, 2]

HIDDEN, HEAD_DIM, MASK = 16, 8, 31
TAPPED = (2, 0)
"""Blocks of the toy target that are tapped, not in their order."""

NUM_BLOCKS = 4
"""Blocks that the toy target pretends to have."""


def draft_spec(version: Version, k: int) -> DraftSpec:
    """One layer that sees everything, and one with a window that sees back alone."""
    second = version == 2
    return DraftSpec(
        version=version,
        attention=(DraftAttention(0, False), DraftAttention(7, True)),
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        rope=RopeSpec(100.0, HEAD_DIM),
        attention_bias=False,
        max_position_embeddings=4096,
        block_size=1 + k,
        mask_token_id=MASK,
        target_layer_ids=TAPPED,
        num_target_layers=NUM_BLOCKS,
        target_hidden_size=HIDDEN,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=0.0,
        conv_kernel_size=2 if second else 0,
        conv_group_size=8 if second else 0,
        selector_rank=4 if second else 0,
        selector_top_k=4 if second else 0,
    )


@cache
def toy_table() -> npt.NDArray[np.float32]:
    """[VOCABULARY, HIDDEN]: embedding and head of the toy, and what its residual streams are made of."""
    return np.random.default_rng(11).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)


@cache
def weights_of(version: Version, k: int) -> DraftWeights:
    """The same for the same version, whatever k."""
    draw = np.random.default_rng([5, version])

    def matrix(*shape: int) -> npt.NDArray[np.float32]:
        return (draw.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])).astype(np.float32)

    def vector(*shape: int) -> npt.NDArray[np.float32]:
        return (1.0 + 0.3 * draw.standard_normal(shape)).astype(np.float32)

    weights = draft_weights(draft_spec(version, k), "float32", matrix, vector)
    fill_context(draft_spec(version, k), weights)
    return weights


def toy_proposer(device: Device, version: Version, sizes: StepSizes, num_blocks: int, *, fused: bool) -> DFlashProposer:
    """The product's recorder over these weights, on a device.

    fused: the forms of a GPU where they fit, which run on every device.
    """
    spec = draft_spec(version, sizes.num_speculative_tokens)
    target: Any = SimpleNamespace(embed=device.constant("toy_embed", toy_table()), head=device.constant("toy_head", toy_table()))
    arrays = upload_drafter(
        device,
        spec,
        weights_of(version, sizes.num_speculative_tokens),
        target,
        max_model_len=sizes.max_model_len,
        num_blocks=num_blocks,
        block_size=sizes.block_size,
    )
    scratch = allocate_draft_scratch(device, spec, sizes)
    choice = "fused" if fused else "plain"
    ops = build_draft_ops(device, spec, sizes, scratch, "float32", on_gpu=False, choice=choice)  # type: ignore[arg-type]
    return DFlashProposer(
        arrays,
        scratch,
        spec.target_layer_ids,
        num_speculative_tokens=sizes.num_speculative_tokens,
        max_model_len=sizes.max_model_len,
        ops=ops,
        backlog=allocate_backlog(device, spec, sizes),
    )


def block_drafts(version: Version, prefix: Sequence[int], k: int, max_model_len: int) -> list[int]:
    """k drafts behind `prefix`, -1 from the model length on."""
    spec, weights = draft_spec(version, k), weights_of(version, k)
    anchor_at = len(prefix) - 1
    rows = min(1 + k, max_model_len - anchor_at)
    context = _features(prefix[:anchor_at]) @ weights.fc.T.astype(np.float64)
    context = _norm(context, weights.hidden_norm, spec.rms_norm_eps)
    embed = toy_table().astype(np.float64)
    x = embed[[prefix[-1], *[MASK] * (rows - 1)]]
    for layer, sees in zip(weights.layers, spec.attention, strict=True):
        y, behind = _convolve(_norm(x, layer.input_norm, spec.rms_norm_eps), layer.attention_conv)
        x = x + behind(_attend(spec, layer, sees, y, context))
        y, behind = _convolve(_norm(x, layer.post_norm, spec.rms_norm_eps), layer.mlp_conv)
        gate, up = np.split(y @ layer.gate_up.T, 2, axis=1)
        x = x + behind((gate / (1 + np.exp(-gate)) * up) @ layer.down.T)
    hidden = _norm(x, weights.final_norm, spec.rms_norm_eps)[1:]
    logits = hidden @ embed.T
    drafts = _walk(spec, weights, prefix[-1], hidden, logits) if version == 2 else logits.argmax(axis=1).tolist()
    return [*drafts, *[-1] * (k + 1 - rows)]


def _features(tokens: Sequence[int]) -> Floats:
    """What kernels.toy.toy_residual writes for a request's tokens, tapped blocks side by side."""
    table, ids, at = toy_table().astype(np.float64), np.array(tokens, int), np.arange(len(tokens))
    streams = [table[(ids + 5 * block) % VOCABULARY] + 0.5 * table[(at + 11 * block) % VOCABULARY] for block in TAPPED]
    return np.concatenate(streams, axis=1).reshape(len(tokens), -1)


def _norm(x: Floats, gain: Any, eps: float) -> Floats:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * gain)


def _convolve(y: Floats, conv: Any) -> tuple[Floats, Any]:
    """(convolved input of a sublayer, what is done to its output)."""
    if conv is None:
        return y, lambda z: z
    groups = conv.projection.shape[0] // 4
    kernels = (y @ conv.projection.T).reshape(len(y), 2, 2, groups)

    def convolve(side: int, z: Floats) -> Floats:
        before = np.concatenate([np.zeros((1, z.shape[1])), z[:-1]])
        width = z.shape[1] // groups
        own, other = (conv.base_kernel[side, tap] + np.repeat(kernels[:, side, tap], width, axis=1) for tap in (0, 1))
        return np.asarray(own * z + other * before)

    return convolve(0, y), lambda z: convolve(1, z)


def _attend(spec: DraftSpec, layer: Any, sees: DraftAttention, y: Floats, context: Floats) -> Floats:
    """What the attention of a layer adds: the block's rows over context and block."""
    anchor_at, eps, head_dim = len(context), spec.rms_norm_eps, spec.head_dim
    angles = rope_table(spec.rope, head_dim, anchor_at + len(y)).astype(np.float64)

    def rotated(heads: Floats, gain: Any, first: int) -> Floats:
        cos, sin = np.split(angles[first : first + len(heads), None], 2, axis=2)
        one, two = np.split(_norm(heads, gain, eps), 2, axis=2)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=2)

    q, k, v = np.split(layer.qkv.astype(np.float64), [spec.q_size, spec.q_size + spec.kv_size])
    both = np.concatenate([context, y])
    keys = rotated((both @ k.T).reshape(len(both), -1, head_dim), layer.k_norm, 0)
    values = (both @ v.T).reshape(len(both), -1, head_dim)
    queries = rotated((y @ q.T).reshape(len(y), -1, head_dim), layer.q_norm, anchor_at)
    distance = (anchor_at + np.arange(len(y)))[:, None] - np.arange(len(both))
    seen = np.ones(distance.shape, bool)
    if sees.window:
        seen &= np.abs(distance) < sees.window
    if sees.causal:
        seen &= distance >= 0
    out = []
    for head in range(spec.num_heads):
        kv_head = head * spec.num_kv_heads // spec.num_heads
        scores = np.where(seen, queries[:, head] @ keys[:, kv_head].T / np.sqrt(head_dim), -np.inf)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.append(shares / shares.sum(axis=1, keepdims=True) @ values[:, kv_head])
    return np.asarray(np.concatenate(out, axis=1) @ layer.out.T)


def _walk(spec: DraftSpec, weights: DraftWeights, anchor: int, hidden: Floats, logits: Floats) -> list[int]:
    selector = weights.selector
    assert selector is not None
    before, drafts = anchor, list[int]()
    for state, line in zip(hidden @ selector.projection.T, logits, strict=True):
        candidates = np.argsort(-line, kind="stable")[: spec.selector_top_k]
        scores = line[candidates] + (selector.predecessors[before] * state) @ selector.successors[candidates].T
        before = int(candidates[scores.argmax()])
        drafts.append(before)
    return drafts
