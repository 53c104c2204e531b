"""How the tiles of a fused product are laid out (kernels/tile.py), from the shape of its weights alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.lang import Kernel
from kernels.project import (
    norm_gate_up,
    norm_project,
    norm_project_two,
    project_residual,
    project_residual_two,
)
from kernels.project_small import norm_gate_up_small, norm_project_small
from kernels.project_tap import project_residual_tap, project_residual_two_tap
from kernels.tile import CHUNK, TILE_ROWS

_LARGE_BYTES = 8 << 20
"""16-bit weights of a product from which a tile is sixteen weight rows: below, more blocks of eight fill the GPU better."""

_MOST_PARTS = (0, 9, 5)
"""Warps that share the columns of a tile at most, by slabs."""

_STAGES = 3
"""Chunks that a warp has under way with two slabs."""

_WARPS_A_BLOCK = 4

HEAD_THREADS = 32 * _WARPS_A_BLOCK

_BLOCKS = 396
"""Blocks of a launch beyond which tiles take turns: three on each multiprocessor of an H200. No result depends on it."""


@dataclass(frozen=True)
class Layout:
    """How a product is laid out, from the shape of its weights alone: the batch must have no say in the order of a sum.

    Attributes:
        parts: warps that share the columns of a tile.
        slabs: a tile is so many times eight weight rows.
        warps: of a block that multiply.
        grid: blocks of the launch.
        spread: see kernels.lang.Kernel.
        small: see kernels/project_small.py.
    """

    parts: int
    slabs: int
    warps: int
    grid: int
    spread: bool = False
    small: bool = False

    @classmethod
    def of(cls, outputs: int, depth: int, *, slabs: int | None = None) -> Layout:
        """`outputs` rows of weights of `depth` columns; slabs None: by size.

        As many warps share a tile as a block has: together they read the longest runs of a row.
        """
        large = 2 * outputs * depth >= _LARGE_BYTES
        if slabs is None:
            slabs = 2 if large else 1
        chunks = -(-depth // CHUNK)
        parts = min(chunks, _MOST_PARTS[slabs])
        return cls.sharing(outputs, slabs, -(-chunks // -(-chunks // parts)), spread=large, small=not large)

    @classmethod
    def sharing(cls, outputs: int, slabs: int, parts: int, *, spread: bool = False, small: bool = False) -> Layout:
        """`parts` warps to a tile."""
        warps = parts * max(_WARPS_A_BLOCK // parts, 1)
        blocks = -(-outputs // (slabs * TILE_ROWS * (warps // parts)))
        return cls(parts, slabs, warps, -(-blocks // -(-blocks // _BLOCKS)), spread, small)

    @classmethod
    def at_once(cls, outputs: int, depth: int) -> Layout:
        """Of a small product: sixteen rows of weights a tile, and as few warps to it as have all their chunks under way at once."""
        return cls.sharing(outputs, 2, min(-(-depth // (CHUNK * _STAGES)), _MOST_PARTS[2]), small=True)

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel as this layout launches it."""
        return _SPREAD[kernel] if self.spread else _SMALL.get(kernel, kernel) if self.small else kernel


_SMALL = {norm_project_two: norm_project_small, norm_gate_up: norm_gate_up_small}

_SPREAD = {
    kernel: replace(kernel, spread=True)
    for kernel in (
        norm_project,
        norm_project_two,
        norm_gate_up,
        project_residual,
        project_residual_two,
        project_residual_tap,
        project_residual_two_tap,
    )
}


def layouts_of(name: str, outputs: int, depth: int) -> list[Layout]:
    """The layouts of a product worth measuring, the usual one first: it is what batch_invariant takes. name: qkv, out, gate_up or
    down."""
    usual = Layout.of(outputs, depth, slabs=2 if name == "gate_up" else None)
    if 2 * outputs * depth < _LARGE_BYTES:
        together = Layout.at_once(outputs, depth)
        return {"qkv": [together], "gate_up": list(dict.fromkeys([usual, together]))}.get(name, [usual])
    fewer = Layout.sharing(outputs, 2, max(usual.parts - 1, 1), spread=True)
    at_once = replace(usual, grid=-(-outputs // (2 * TILE_ROWS)), spread=False)
    return list(dict.fromkeys([usual, replace(usual, spread=False), fewer, at_once]))


def stripes_of(vocab_size: int) -> int:
    """Stripes of the head, each with a best column of its own: the shape of best_value [stripes, J]."""
    groups = -(-vocab_size // (2 * TILE_ROWS * _WARPS_A_BLOCK))
    return -(-groups // -(-groups // _BLOCKS))
