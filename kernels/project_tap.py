"""`project_residual` behind a block that a drafter taps: the new residual goes to the drafter's features too (kernels/tap.py)."""

from __future__ import annotations

from kernels.lang import cuda, f32, i32, kernel
from kernels.project import add_rows
from kernels.tile import PARTIAL, RING

_REGISTERS = 96  # as kernels/project.py


@kernel(writes=("residual", "normed", "squares", "features"), max_registers=_REGISTERS, overlap=True, early=("weight", "gain"))
def project_residual_tap(residual, normed, squares, features, x, weight, gain, column, parts, num_tokens):
    """`project_residual` (kernels/project.py), and features[t, column : column + N] = the new residual.

    Args:
        features: [T, F], any storage type.
        column: int32, first column of the tap.
        others: as in `project_residual`.

    Launch, ownership and barriers as there. Safe under capture, and not idempotent. Oracle: oracle_fused.project_residual_tap.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    add_rows(ring, partial, residual, normed, squares, x, weight, gain, parts, i32(1), num_tokens, features, column)


@kernel(writes=("residual", "normed", "squares", "features"), max_registers=_REGISTERS, overlap=True, early=("weight", "gain"))
def project_residual_two_tap(residual, normed, squares, features, x, weight, gain, column, parts, num_tokens):
    """`project_residual_tap` in tiles of 16 outputs, for large weights. Launch, ownership and barriers are the same. Safe under
    capture, and not idempotent. Oracle: oracle_fused.project_residual_tap.

    Args:
        residual, normed, squares, features, x, weight, gain, column, parts, num_tokens: as in `project_residual_tap`.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    add_rows(ring, partial, residual, normed, squares, x, weight, gain, parts, i32(2), num_tokens, features, column)
