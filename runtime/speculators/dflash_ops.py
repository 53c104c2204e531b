"""Which form of its parts a drafter takes on a device, and the scratch of these forms."""

from __future__ import annotations

import numpy as np

from graphs.draft_fused import ClusterBlockAttention, FusedJoins
from graphs.draft_pass import BlockAttention, Joins, PlainBlockAttention, PlainJoins, Products
from graphs.drafter_arrays import DraftScratch
from graphs.plain_ops import Stripes
from graphs.propose_dflash import DraftOps
from kernels.attend_step import MAX_HEAD_DIM
from kernels.block_join import MAX_QUERIES, TAPS
from runtime.checkpoint.weights import WeightDtype
from runtime.device import Device
from runtime.models.scratch import COLUMNS_A_STRIPE, OpsChoice
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


def build_draft_ops(
    device: Device, spec: DraftSpec, sizes: StepSizes, scratch: DraftScratch, dtype: WeightDtype, *, on_gpu: bool, choice: OpsChoice
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
    return DraftOps(joins, joined_rows, attention, stripes, products)
