"""Tap the residual stream: what a drafter reads of the target, laid beside the taps of other blocks."""

from __future__ import annotations

from kernels.lang import cuda, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow


@kernel(writes=("features",), overlap=True)
def tap(features, residual, column, num_tokens):
    """features[t, column : column + H] = residual[t] for the live tokens.

    Args:
        features: [T, taps * H], any storage type.
        residual: float32 [T, H], after both additions of the tapped block and before the next norm.
        column: int32, first column of the tap.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, threads over the columns. Block `t` owns its part of row t. No barrier; safe under capture.
    Oracle: oracle_context.tap.
    """
    wait_for_launches()
    let_next_launch_start()
    width = residual.shape[1]
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            features[row, column + i] = narrow(residual[row, i], features)
