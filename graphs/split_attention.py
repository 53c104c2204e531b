"""Attention over 16-bit paged keys on tensor cores: rotation and store in one launch, then keys split over blocks, or rows."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.attend import attend, attend_rows
from kernels.attend_tile import PAIRS
from kernels.rotate import norm_rotate_store, rotate_store

WARPS = 4
THREADS = 32 * WARPS

_BLOCKS = 512
"""Blocks of the split kernel that are worth launching; more chunks than that take turns."""

_FEW_TILES = 40
"""Tiles of a step whose blocks, a chunk each, are taken to be on the GPU at once with twice the warps."""


def pair_tiles(rows: int, num_heads: int, num_kv_heads: int) -> int:
    """Tiles of the pairs that so many rows of one request make with the heads of a kv head."""
    return -(-rows * (num_heads // num_kv_heads) // PAIRS)


def split_warps(tokens: int, requests: int, num_heads: int, num_kv_heads: int) -> int:
    """Warps of a block of the split kernel; from `WARPS` on their number changes no bit.

    A warp goes over the pairs of a tile one after the other, in softmax and combination: on an H200 about 4 us each. So tiles that
    may be full get more warps, as long as the blocks of a usual context are on the GPU at once, two on a multiprocessor.
    """
    tiles = num_kv_heads * max(requests, pair_tiles(tokens, num_heads, num_kv_heads))
    full = tokens * (num_heads // num_kv_heads) > WARPS
    return 2 * WARPS if full and tiles <= _FEW_TILES else WARPS


@dataclass(frozen=True)
class SplitScratch:
    """Scratch of split attention. C = chunks of the longest request, S = rows that are split at most.

    `arrivals` must be 0 before the first step; every launch leaves it so.
    """

    query: Array  # [T, nh hd], of the cache's type
    totals: Array  # float32 [C, S, nh, hd]
    stats: Array  # float32 [C, S, nh, 2]
    arrivals: Array  # int32 [N, nkv, tiles of S rows]


@dataclass(frozen=True)
class SplitAttention:
    """Steps of at most S rows split the keys (kernels/attend.py), larger ones the rows.

    Attributes:
        scratch: sized for the largest step.
    """

    scratch: SplitScratch

    def record(self, run: ForwardPass, layer: LayerArrays) -> None:
        shape, tokens, launch, scratch = run.model.shape, run.num_tokens, run.launch, self.scratch
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        inputs, positions = run.step.inputs, run.step.positions[:tokens]
        query, attention = scratch.query[:tokens], run.scratch.attention[:tokens]
        grid = (tokens, -(-(heads + 2 * kv_heads) // WARPS))
        caches, qkv = (layer.k_cache, layer.v_cache), run.scratch.qkv[:tokens]
        rotation = (run.model.rope_table, positions, run.step.slot_mapping[:tokens], heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            gains, eps = (layer.q_norm, layer.k_norm), shape.rms_norm_eps
            launch.launch(norm_rotate_store, grid, THREADS, query, *caches, qkv, *gains, *rotation, eps, run.live)
        else:
            launch.launch(rotate_store, grid, THREADS, query, *caches, qkv, *rotation, run.live)
        requests = run.most_requests
        where = (run.state.block_tables, positions, inputs.idx_mapping, inputs.query_start_loc, heads)
        scale = float(shape.head_dim) ** -0.5
        chunks, split_rows = scratch.totals.shape[:2]
        if tokens <= split_rows:
            pieces = min(chunks * pair_tiles(tokens, heads, kv_heads), max(4, _BLOCKS // (kv_heads * requests)))
            partial = (scratch.totals, scratch.stats, scratch.arrivals)
            blocks = (pieces, kv_heads, requests)
            threads = 32 * split_warps(tokens, requests, heads, kv_heads)
            launch.launch(
                attend, blocks, threads, attention, *partial, query, *caches, *where, scale, inputs.num_requests
            )
        else:
            blocks = (pair_tiles(tokens, heads, kv_heads), kv_heads, requests)
            launch.launch(attend_rows, blocks, THREADS, attention, query, *caches, *where, scale, inputs.num_requests)
