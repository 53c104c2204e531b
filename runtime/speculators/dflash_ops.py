"""Which form of its parts a drafter takes on a device, and the scratch of these forms."""

from __future__ import annotations

import logging

import numpy as np

from graphs.arrays import DecoderShape
from graphs.draft_fused import ClusterBlockAttention, FusedJoins
from graphs.draft_layers import LayersAsTarget, as_model, as_scratch
from graphs.draft_pass import BlockAttention, Joins, PlainBlockAttention, PlainJoins, Products
from graphs.drafter_arrays import DraftArrays, DraftScratch
from graphs.fused_ops import FusedOps, FusedScratch, stripes_of, why_not_fused
from graphs.ops import OpTable
from graphs.plain_ops import PlainOps, Stripes
from graphs.propose_dflash import DraftOps
from graphs.step_attention import StepAttention
from kernels.attend_step import MAX_HEAD_DIM
from kernels.block_join import MAX_QUERIES, TAPS
from kernels.tile import TILE_ROWS
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.device import Device
from runtime.models.choose_ops import OpsChooser
from runtime.models.scratch import COLUMNS_A_STRIPE, MOST_FUSED_ROWS, OpsChoice
from runtime.speculators.dflash_config import DraftSpec
from runtime.step_buffers import StepSizes

logger = logging.getLogger(__name__)

JOINED_ROWS = 64
"""Query rows up to which a join is one launch; it reads them once for each group of channels."""

OWN_ROWS = 32
"""Rows up to which a small product is our own: its weights are read once for each sixteen."""

OWN_BYTES = 8 << 20
"""Matrices up to which it is."""

JOINED_WIDTH = 1024
"""Hidden size up to which it is, for the same reason."""


def build_draft_ops(
    device: Device,
    spec: DraftSpec,
    sizes: StepSizes,
    arrays: DraftArrays,
    scratch: DraftScratch,
    dtype: WeightDtype,
    *,
    on_gpu: bool,
    choice: OpsChoice,
) -> DraftOps:
    """The forms that a drafter takes.

    auto: on a GPU the fused forms where they fit; `fused`: everywhere where they fit; `plain`: nowhere.
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
        layers = _layers_as_target(device, spec, arrays, scratch, stripes, dtype, measure=on_gpu and choice == "auto")
    return DraftOps(joins, joined_rows, attention, stripes, products, layers)


def _layers_as_target(
    device: Device,
    spec: DraftSpec,
    arrays: DraftArrays,
    scratch: DraftScratch,
    stripes: Stripes | None,
    dtype: WeightDtype,
    *,
    measure: bool,
) -> LayersAsTarget | None:
    """The target's sets of operations for the layers, chosen as a target's are; None where they do not take them."""
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
    rows, picks, tiles = scratch.residual.shape[0], scratch.logits.shape[0], -(-spec.hidden_size // TILE_ROWS)
    best = stripes_of(spec.vocab_size), picks
    attention = StepAttention(scratch.attention)  # stands for the block's own while forms are measured
    fused = FusedOps(
        FusedScratch(
            squares=device.array("draft.squares", (rows, tiles), np.float32),
            best_value=device.array("draft.best_value", best, np.float32),
            best_column=device.array("draft.best_column", best, np.int32),
        ),
        attention,
    )
    library = PlainOps(attention, stripes)
    if not measure:
        return LayersAsTarget(shape, OpTable(library, ((MOST_FUSED_ROWS, fused),)))
    table, chosen = OpsChooser(device, as_model(arrays, shape), as_scratch(scratch))(fused, library)
    logger.info("operations of the drafter: %s", chosen)
    return LayersAsTarget(shape, table)
