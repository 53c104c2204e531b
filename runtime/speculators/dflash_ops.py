"""Which form of its parts a drafter takes on a device, and the scratch of these forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphs.arrays import DecoderShape
from graphs.draft_fused import ClusterBlockAttention, FusedJoins
from graphs.draft_layers import LayersAsTarget
from graphs.draft_pass import BlockAttention, Joins, PlainBlockAttention, PlainJoins, Products
from graphs.drafter_arrays import DraftScratch
from graphs.fused_ops import FusedOps, FusedScratch, why_not_fused
from graphs.ops import HeadOps, Ops, OpTable
from graphs.plain_ops import PlainOps, Stripes
from graphs.propose_dflash import DraftOps
from graphs.step_attention import StepAttention
from kernels.attend_step import MAX_HEAD_DIM
from kernels.block_join import MAX_QUERIES, TAPS
from kernels.tile import TILE_ROWS
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.device import Device
from runtime.models.scratch import AUTO_FUSED_ROWS, COLUMNS_A_STRIPE, OpsChoice
from runtime.speculators.dflash_config import DraftSpec
from runtime.step_buffers import StepSizes

JOINED_ROWS = 64
"""Query rows up to which a join is one launch; it reads them once for each group of channels."""

OWN_ROWS = 32
"""Rows up to which a small product is our own: its weights are read once for each sixteen."""

OWN_BYTES = 8 << 20
"""Matrices up to which it is."""

JOINED_WIDTH = 1024
"""Hidden size up to which it is, for the same reason."""


@dataclass(frozen=True)
class TargetOps:
    """Which set of operations records a step of the target of so many rows."""

    shape: DecoderShape
    table: OpTable


def build_draft_ops(
    device: Device,
    spec: DraftSpec,
    sizes: StepSizes,
    scratch: DraftScratch,
    dtype: WeightDtype,
    *,
    on_gpu: bool,
    choice: OpsChoice,
    target: TargetOps | None = None,
) -> DraftOps:
    """The forms that a drafter takes.

    auto: on a GPU the fused forms where they fit; `fused`: everywhere where they fit; `plain`: nowhere.
    target: what records the target's steps, for layers of the same sizes.
    """
    stripes = None
    if on_gpu:
        shape = (-(-spec.vocab_size // COLUMNS_A_STRIPE), sizes.max_num_seqs * sizes.num_speculative_tokens)
        stripes = Stripes(
            device.array("draft.stripe_value", shape, np.float32), device.array("draft.stripe_column", shape, np.int32)
        )
    fused = choice == "fused" or (choice == "auto" and on_gpu)
    joins: Joins = PlainJoins()
    attention: BlockAttention = PlainBlockAttention()
    joined_rows, queries = 0, 1 + sizes.num_speculative_tokens
    narrow = queries <= MAX_QUERIES and spec.hidden_size <= JOINED_WIDTH
    if fused and narrow and spec.version == 2 and spec.conv_kernel_size == TAPS:
        assert scratch.conv_delta is not None
        joined_rows = JOINED_ROWS
        joins = FusedJoins(
            device.array("draft.other_residual", scratch.residual.shape, np.float32),
            device.array("draft.other_delta", scratch.conv_delta.shape, np.float32),
        )
    heads_fit = spec.head_dim in (64, 128) if on_gpu else spec.head_dim <= MAX_HEAD_DIM
    if fused and heads_fit and (dtype != "float32" or not on_gpu):
        attention = ClusterBlockAttention()
    ours = fused and (dtype != "float32" or not on_gpu)
    products = Products(OWN_ROWS, OWN_BYTES) if ours else Products()
    layers = None
    if ours and spec.version == 1 and not spec.attention_bias and spec.input_embedding_scale == 1.0:
        layers = _layers_as_target(device, spec, scratch, stripes, dtype, target)
    return DraftOps(joins, joined_rows, attention, stripes, products, layers)


def _layers_as_target(
    device: Device, spec: DraftSpec, scratch: DraftScratch, stripes: Stripes | None, dtype: WeightDtype, target: TargetOps | None
) -> LayersAsTarget | None:
    """The target's sets of operations for the layers: those that its own steps take where the layers are of the same sizes, else
    the fused set for as many rows as read the weights once. None where no fused set takes them."""
    shape = DecoderShape(
        spec.hidden_size,
        spec.intermediate_size,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.vocab_size,
        spec.rms_norm_eps,
    )
    if why_not_fused(shape, STORAGE[dtype]) is not None:
        return None
    squares = device.array("draft.squares", (scratch.residual.shape[0], -(-spec.hidden_size // TILE_ROWS)), np.float32)
    # Neither head nor attention of the sets is used: best columns and the attention of a step stand for nothing.
    attention, unused = StepAttention(scratch.attention), squares
    fused, library = FusedOps(FusedScratch(squares, unused, unused), attention), PlainOps(attention, stripes)
    heads = None if target is None else target.table
    if target is None or _sizes(target.shape) != _sizes(shape):
        return LayersAsTarget(shape, OpTable(library, ((AUTO_FUSED_ROWS, fused),)), heads)

    def same(ops: Ops) -> Ops:
        layers = ops.layers if isinstance(ops, HeadOps) else ops
        return replace(fused, layouts=layers.layouts) if isinstance(layers, FusedOps) else library

    few = tuple((rows, same(ops)) for rows, ops in target.table.few)
    return LayersAsTarget(shape, OpTable(same(target.table.many), few), heads)


def _sizes(shape: DecoderShape) -> tuple[int, ...]:
    return shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads, shape.head_dim
