"""The forms of a drafter's parts for a GPU: joins of few rows in one launch each, attention of 16-bit blocks on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.draft_pass import DraftPass
from graphs.drafter_arrays import DraftConvArrays, DraftLayerArrays
from graphs.launch import Array
from kernels.block_attend import block_attend
from kernels.block_join import join_conv, join_norm
from kernels.rotate import norm_rotate_store

WARPS = 4
THREADS = 32 * WARPS
JOIN_THREADS = 32 * 8
NORM_THREADS = 32 * 2

_FEW_TILES = 64
"""Tiles of pairs whose blocks are on the GPU at once with twice the warps, which share softmax and combination; no bit changes."""

_BLOCKS = 512
"""Blocks of attention that are worth launching; more chunks than that take turns."""


@dataclass(frozen=True)
class FusedJoins:
    """DFlash2 between its sublayers (kernels/block_join.py). Residual stream and kernels change places from join to join.

    Attributes:
        residual: float32 [N * Q, H], beside scratch.residual.
        delta: float32 [N * Q, 4 * G], beside scratch.conv_delta.
    """

    residual: Array
    delta: Array

    def first(self, run: DraftPass, gain: Array, conv: DraftConvArrays | None) -> Array:
        assert conv is not None
        return self._join(run, 0, conv, gain, conv)

    def next(self, run: DraftPass, place: int, done: DraftConvArrays | None, gain: Array, conv: DraftConvArrays | None) -> Array:
        assert done is not None
        if conv is not None:
            return self._join(run, place, done, gain, conv)
        normed, queries = run.scratch.normed[: run.count], 1 + run.k
        residual, delta = self._of(run, place)
        arguments = (normed, residual, run.scratch.projected[: run.count], done.base_kernel, delta, gain)
        run.launch.launch(join_norm, run.count, NORM_THREADS, *arguments, run.arrays.shape.rms_norm_eps, queries, run.live)
        return normed

    def _join(self, run: DraftPass, place: int, done: DraftConvArrays, gain: Array, conv: DraftConvArrays) -> Array:
        assert run.scratch.convolved is not None
        convolved, requests = run.scratch.convolved[: run.count], run.requests
        residual, done_delta = self._of(run, place)
        total, delta = self._of(run, place + 1)
        groups = delta.shape[1] // 4
        run.launch.launch(
            join_conv,
            (groups, requests),
            JOIN_THREADS,
            total,
            convolved,
            delta,
            residual,
            run.scratch.projected[: run.count],
            done.base_kernel,
            done_delta,
            gain,
            conv.base_kernel,
            conv.projection,
            run.arrays.shape.rms_norm_eps,
            int(place > 0),
            1 + run.k,
            run.step.inputs.num_requests,
        )
        return convolved

    def _of(self, run: DraftPass, place: int) -> tuple[Array, Array]:
        """(residual stream, dynamic kernels) in front of join number `place`."""
        assert run.scratch.conv_delta is not None
        pair = ((run.scratch.residual, run.scratch.conv_delta), (self.residual, self.delta))[place % 2]
        return pair[0][: run.count], pair[1][: run.count]


@dataclass(frozen=True)
class SplitBlockAttention:
    """Rotation in one launch, then the keys split over blocks (kernels/block_attend.py).

    C = chunks of the longest context. `arrivals` must be 0 before the first step; every launch leaves it so.
    """

    query: Array  # [N * Q, nh hd], of the cache's type
    own_keys: Array  # [N, Q, nkv, hd], of the cache's type
    own_values: Array
    own_cells: Array  # int32 [N * Q], own_cells[i] = i
    own_table: Array  # int32 [N, 1], own_table[r, 0] = r
    totals: Array  # float32 [C + 1, N * Q, nh, hd]
    stats: Array  # float32 [C + 1, N * Q, nh, 2]
    arrivals: Array  # int32 [N, nkv, tiles]

    def record(self, run: DraftPass, index: int, layer: DraftLayerArrays) -> None:
        shape, scratch, count, launch, rows = run.arrays.shape, run.scratch, run.count, run.launch, run.requests
        heads, kv_heads, query = shape.num_heads, shape.num_kv_heads, self.query[:count]
        own = (self.own_keys, self.own_values)
        launch.launch(
            norm_rotate_store,
            (count, -(-(heads + 2 * kv_heads) // WARPS)),
            THREADS,
            query,
            *own,
            scratch.qkv[:count],
            layer.q_norm,
            layer.k_norm,
            run.arrays.rope_table,
            scratch.block_positions[:count],
            self.own_cells[:count],
            heads,
            shape.rms_norm_eps,
            run.live,
        )
        tiles = self.arrivals.shape[2]
        pieces = min(self.totals.shape[0] * tiles, max(2 * tiles, _BLOCKS // (kv_heads * rows)))
        launch.launch(
            block_attend,
            (pieces, kv_heads, rows),
            2 * THREADS if kv_heads * rows * tiles <= _FEW_TILES else THREADS,
            scratch.attention[:count],
            self.totals,
            self.stats,
            self.arrivals,
            query,
            *own,
            self.own_table,
            layer.k_cache,
            layer.v_cache,
            run.state.block_tables,
            run.step.inputs.idx_mapping[:rows],
            scratch.context_lens[:rows],
            scratch.block_lens[:rows],
            heads,
            layer.window,
            int(layer.causal),
            float(shape.head_dim) ** -0.5,
            run.step.inputs.num_requests,
        )
