"""Projections of small layers in tiles of sixteen outputs: as those of kernels/project.py, with room for all that a thread keeps.

A launch of a small layer has no more than two blocks for each multiprocessor, so that nothing is gained by fewer registers, and it
is over in four thousand cycles: what a thread kept in memory for want of them took 3 % of a step of one row. Numba's cache of
compiled kernels tells functions apart, not registers: hence functions of their own.
"""

from __future__ import annotations

from kernels.lang import cuda, f32, i32, kernel
from kernels.project import project_rows
from kernels.tile import PARTIAL, RING, TILE_TOKENS

_REGISTERS = 128


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",))
def norm_project_small(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """`norm_project_two` (kernels/project.py) of a small layer. Launch, ownership and barriers are the same. Safe under capture.
    Oracle: oracle_fused.norm_project.

    Args:
        out, x, squares, weight, eps, scaled, parts, num_tokens: as in `norm_project`.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(2), i32(0), num_tokens)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",))
def norm_gate_up_small(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """`norm_gate_up` (kernels/project.py) of a small layer. Launch, ownership and barriers are the same. Safe under capture.
    Oracle: oracle_fused.norm_gate_up.

    Args:
        out, x, squares, weight, eps, scaled, parts, num_tokens: as in `norm_gate_up`.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(2), i32(1), num_tokens)
