"""Which form of its parts a drafter takes on a device, and the scratch of these forms."""

from __future__ import annotations

import numpy as np

from graphs.draft_fused import FusedJoins, SplitBlockAttention
from graphs.draft_pass import BlockAttention, Joins, PlainBlockAttention, PlainJoins, Products
from graphs.drafter_arrays import DraftScratch
from graphs.plain_ops import Stripes
from graphs.propose_dflash import DraftOps
from kernels.attend_tile import PAIRS
from kernels.block_attend import CHUNK_KEYS, MAX_HEAD_DIM
from kernels.block_join import MAX_QUERIES, TAPS
from runtime.checkpoint.weights import STORAGE, WeightDtype
from runtime.device import Device
from runtime.models.scratch import COLUMNS_A_STRIPE, OpsChoice
from runtime.speculators.dflash_config import DraftSpec
from runtime.step_buffers import StepSizes

JOINED_ROWS = 64
"""Query rows up to which a join is one launch; it reads them once for each group of channels."""

SPLIT_BYTES = 1 << 30
"""Scratch of split attention, which grows with slots times length, beyond which attention takes the plain form."""

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
    affordable = 4 * _chunks(sizes) * sizes.max_num_seqs * queries * spec.q_size <= SPLIT_BYTES
    if fused and queries <= CHUNK_KEYS and heads_fit and affordable and (dtype != "float32" or not on_gpu):
        attention = _split_attention(device, spec, sizes, dtype)
    ours = fused and (dtype != "float32" or not on_gpu)
    products = Products(OWN_ROWS, OWN_BYTES) if ours else Products()
    return DraftOps(joins, joined_rows, attention, stripes, products)


def _chunks(sizes: StepSizes) -> int:
    """Of the longest context, and the block itself."""
    return 1 + -(-sizes.blocks_per_slot * sizes.block_size // CHUNK_KEYS)


def _split_attention(device: Device, spec: DraftSpec, sizes: StepSizes, dtype: WeightDtype) -> SplitBlockAttention:
    slots, queries = sizes.max_num_seqs, 1 + sizes.num_speculative_tokens
    rows, heads, head_dim = slots * queries, spec.num_heads, spec.head_dim
    chunks = _chunks(sizes)
    own = (slots, queries, spec.num_kv_heads, head_dim)
    tiles = -(-queries * (heads // spec.num_kv_heads) // PAIRS)
    arrivals = device.array("draft.arrivals", (slots, spec.num_kv_heads, tiles), np.int32)
    device.upload(arrivals, np.zeros(arrivals.shape, np.int32))
    return SplitBlockAttention(
        query=device.array("draft.query", (rows, spec.q_size), STORAGE[dtype]),
        own_keys=device.array("draft.own_keys", own, STORAGE[dtype]),
        own_values=device.array("draft.own_values", own, STORAGE[dtype]),
        own_cells=device.constant("draft.own_cells", np.arange(rows, dtype=np.int32)),
        own_table=device.constant("draft.own_table", np.arange(slots, dtype=np.int32).reshape(slots, 1)),
        totals=device.array("draft.totals", (chunks, rows, heads, head_dim), np.float32),
        stats=device.array("draft.stats", (chunks, rows, heads, 2), np.float32),
        arrivals=arrivals,
    )
