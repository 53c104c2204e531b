"""The forms of a drafter's parts for a GPU: joins of few rows in one launch each, attention of 16-bit blocks on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.draft_pass import DraftPass
from graphs.drafter_arrays import DraftConvArrays, DraftLayerArrays
from graphs.launch import Array
from graphs.step_attention import forms_of, pair_tiles, step_form
from kernels.block_attend import block_attend
from kernels.block_join import join_conv, join_norm

JOIN_THREADS = 32 * 8
NORM_THREADS = 32 * 2

_ATTEND = forms_of(block_attend)


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


class ClusterBlockAttention:
    """From the projection on in one launch (kernels/block_attend.py), laid out as a verify step's (graphs/step_attention.py)."""

    def record(self, run: DraftPass, index: int, layer: DraftLayerArrays) -> None:
        shape, scratch, count, rows = run.arrays.shape, run.scratch, run.count, run.requests
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        grid = (pair_tiles(1 + run.k, heads, kv_heads), kv_heads, rows)
        form = step_form(grid)
        run.launch.launch(
            _ATTEND[form, layer.k_cache.dtype.itemsize],
            grid,
            form.threads,
            scratch.attention[:count],
            layer.k_cache,
            layer.v_cache,
            scratch.qkv[:count],
            layer.q_norm,
            layer.k_norm,
            run.arrays.rope_table,
            run.state.block_tables,
            run.step.inputs.idx_mapping[:rows],
            scratch.context_lens[:rows],
            scratch.block_lens[:rows],
            heads,
            shape.rms_norm_eps,
            layer.window,
            int(layer.causal),
            float(shape.head_dim) ** -0.5,
            run.step.inputs.num_requests,
        )
