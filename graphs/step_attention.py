"""Attention over paged keys from the projection on: a decode or verify step in one launch, larger ones in two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from graphs.arrays import LayerArrays
from graphs.launch import Array
from graphs.ops import ForwardPass
from kernels.attend import BLOCK_PAIRS, NARROW_HEAD, attend_rows, attend_wide_rows
from kernels.attend_few import attend_few, norm_attend_few
from kernels.attend_step import MOST_WARPS, PAIRS, WARPS, attend_step, norm_attend_step, ring_bytes
from kernels.lang import Kernel
from kernels.rotate import norm_rotate_store, rotate_store
from kernels.rotate_many import DIMS_A_LANE, norm_rotate_many, rotate_many

THREADS = 32 * WARPS

_BLOCKS = 132
"""Blocks of eight warps that a step is laid out for: one on each multiprocessor of an H200."""

_FEW_TILES = 6
"""Tiles of pairs, one a request and kv head, up to which a step is that of kernels/attend_few.py, faster between the small products
of a small model."""

_MIXED_TILES = 8
"""Tiles of one request that run at once where rows differ: most requests have one or none, and a block costs even so."""


class Form(NamedTuple):
    """Blocks that share the keys of a tile of pairs, and warps of each."""

    cluster: int
    warps: int

    @property
    def threads(self) -> int:
        return 32 * self.warps


SMALL = Form(8, WARPS)
FORMS = (SMALL, *(Form(cluster, MOST_WARPS) for cluster in (4, 2, 1)))


def forms_of(kernel: Kernel) -> dict[tuple[Form, int], Kernel]:
    """A kernel as each form launches it, by the bytes of a cache's elements too: in float32 nothing is kept in dynamic memory."""
    rings = {(form, size): ring_bytes(form.warps) if size == 2 else 0 for form in FORMS for size in (2, 4)}
    return {key: replace(kernel, cluster=key[0].cluster, shared=ring) for key, ring in rings.items()}


_PLAIN, _NORMED = forms_of(attend_step), forms_of(norm_attend_step)

_ROW_BLOCKS = {False: 296, True: 264}
"""Blocks that a larger step is laid out for, of heads of 64 dims and of wide ones: with more that share their keys it was slower
on an H200."""

_MOST_SHARING = 4  # more gained nothing over 4,096 keys, and cost where there are few

_ROWS = {
    (wide, size): replace(kernel, cluster=size)
    for wide, kernel in ((False, attend_rows), (True, attend_wide_rows))
    for size in range(1, _MOST_SHARING + 1)
}

_FLOAT32_ROWS = {wide: replace(_ROWS[wide, 1], shared=0) for wide in (False, True)}

FEW_ROWS = 128
"""Rows of a step of equal requests up to which it is one launch: each tile of pairs rotates the keys of its request's earlier rows
anew."""

FEW_MIXED_ROWS = 32
"""The same of a step whose rows may all be of one prompt."""


def pair_tiles(rows: int, num_heads: int, num_kv_heads: int) -> int:
    """Tiles of the pairs that so many rows of one request make with the heads of a kv head."""
    return -(-rows * (num_heads // num_kv_heads) // PAIRS)


def step_form(grid: tuple[int, int, int]) -> Form:
    """How tiles of pairs (of a request and kv head, kv heads, requests) are launched: by as many warps each as find room."""
    tiles = grid[0] * grid[1] * grid[2]
    if grid[0] == 1 and tiles <= _FEW_TILES:
        return SMALL
    return next((form for form in FORMS[1:] if form.cluster * tiles <= _BLOCKS), FORMS[-1])


def row_tiles(rows: int, num_heads: int, num_kv_heads: int) -> int:
    """Tiles of so many rows of a larger step, were they of one request."""
    return -(-rows * (num_heads // num_kv_heads) // BLOCK_PAIRS)


def row_cluster_blocks(tiles: int, room: int) -> int:
    """Blocks that share the keys of each of so many tiles of a larger step: as many as there is room for."""
    return min(max(room // tiles, 1), _MOST_SHARING)


@dataclass(frozen=True)
class StepAttention:
    """Attributes:
    query: [T, nh hd], of the cache's type: rotated queries of a larger step; scratch.
    batch_invariant: every step has one form, which decides the order of its sums, and larger steps add up as the
        others do (kernels/attend_few.py), at the price of speed.
    """

    query: Array
    batch_invariant: bool = False

    def record(self, run: ForwardPass, layer: LayerArrays) -> None:
        alike = run.step.inputs.query_len > 0 or self.batch_invariant
        few = run.num_tokens <= (FEW_ROWS if alike else FEW_MIXED_ROWS)
        if not few:
            self._rotate(run, layer)
        if few or self.batch_invariant:
            self._step(run, layer, stored=not few)
        else:
            self._rows(run, layer)

    def _rotate(self, run: ForwardPass, layer: LayerArrays) -> None:
        """Keys and values to the cache, queries to scratch."""
        shape, tokens = run.model.shape, run.num_tokens
        heads, all_heads = shape.num_heads, shape.num_heads + 2 * shape.num_kv_heads
        plain, normed, grid = rotate_store, norm_rotate_store, (tokens, -(-all_heads // WARPS))
        if self.query.dtype.itemsize == 2 and not self.batch_invariant:
            plain, normed = rotate_many, norm_rotate_many
            grid = (-(-tokens * all_heads * shape.head_dim // (DIMS_A_LANE * THREADS)), 1)
        arguments = (self.query[:tokens], layer.k_cache, layer.v_cache, run.scratch.qkv[:tokens])
        turning = (run.model.rope_table, run.step.positions[:tokens], run.step.slot_mapping[:tokens], heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            gains, eps = (layer.q_norm, layer.k_norm), shape.rms_norm_eps
            run.launch.launch(normed, grid, THREADS, *arguments, *gains, *turning, eps, run.live)
        else:
            run.launch.launch(plain, grid, THREADS, *arguments, *turning, run.live)

    def _step(self, run: ForwardPass, layer: LayerArrays, *, stored: bool) -> None:
        shape, tokens, inputs = run.model.shape, run.num_tokens, run.step.inputs
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        arrays = (run.scratch.attention[:tokens], layer.k_cache, layer.v_cache, run.scratch.qkv[:tokens])
        places = (run.state.block_tables, run.step.positions[:tokens], run.step.slot_mapping[:tokens])
        where = (run.model.rope_table, *places, inputs.idx_mapping, inputs.query_start_loc, heads)
        tiles = pair_tiles(inputs.query_len or tokens, heads, kv_heads)
        if not inputs.query_len:
            tiles = min(tiles, _MIXED_TILES)
        scale, grid = float(shape.head_dim) ** -0.5, (tiles, kv_heads, run.most_requests)
        form = SMALL if self.batch_invariant else step_form(grid)
        which, plain, normed = (form, layer.k_cache.dtype.itemsize), attend_few, norm_attend_few
        if form is not SMALL:
            plain, normed = _PLAIN[which], _NORMED[which]
        if layer.q_norm is not None and layer.k_norm is not None:
            gains, eps = (layer.q_norm, layer.k_norm), shape.rms_norm_eps
            last = (eps, scale, int(stored), inputs.num_requests)
            run.launch.launch(normed, grid, form.threads, *arrays, *gains, *where, *last)
        else:
            run.launch.launch(plain, grid, form.threads, *arrays, *where, scale, int(stored), inputs.num_requests)

    def _rows(self, run: ForwardPass, layer: LayerArrays) -> None:
        shape, tokens, inputs = run.model.shape, run.num_tokens, run.step.inputs
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        wide = shape.head_dim > NARROW_HEAD
        kernel, grid = _FLOAT32_ROWS[wide], (pair_tiles(tokens, heads, kv_heads), kv_heads, run.most_requests)
        if self.query.dtype.itemsize == 2:
            tiles = row_tiles(tokens, heads, kv_heads)
            kernel = _ROWS[wide, row_cluster_blocks(tiles * kv_heads, _ROW_BLOCKS[wide])]
            grid = (tiles + run.most_requests - 1, kv_heads, 1)  # the last tile of each request may not be full
        arrays = (run.scratch.attention[:tokens], self.query[:tokens], layer.k_cache, layer.v_cache)
        where = (run.state.block_tables, run.step.positions[:tokens], inputs.idx_mapping, inputs.query_start_loc, heads)
        scale = float(shape.head_dim) ** -0.5
        run.launch.launch(kernel, grid, THREADS, *arrays, *where, scale, inputs.num_requests)
