"""DFlash2's grouped dynamic causal convolution along the rows of a draft block."""

from __future__ import annotations

from kernels.lang import cuda, f32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@kernel(writes=("out",), overlap=True)
def block_conv(out, x, base_kernel, delta, side, queries, num_tokens):
    """out[row, c] = sum over s <= min(taps - 1, i) of (base[side, s, c] + delta[row, side, s, c's group]) * x[row - s, c].

    i = row % queries is the place inside the block: rows before its anchor count as 0, so that a block never reaches into the
    context or into another request.

    Args:
        out: [R * Q, H], any storage type, not `x`.
        x: [R * Q, H], any storage type: the normed input of a sublayer (side 0), or what it computed (side 1).
        base_kernel: float32 [2, taps, H].
        delta: float32 [R * Q, 2 * taps * G], the kernel projection of the normed input, for both sides; H / G channels a group.
        side: int32, 0 before the sublayer, 1 behind it and before the residual addition.
        queries: int32, Q, rows of a block (the resolved 1 + k, not the block size of the checkpoint).
        num_tokens: int32 [1], live rows.

    Launch: grid (rows, n) for any n, threads over the columns. An element belongs to one thread. No barrier; safe under capture.
    Oracle: oracle_dflash.block_conv.
    """
    wait_for_launches()
    let_next_launch_start()
    taps, width = base_kernel.shape[1], base_kernel.shape[2]
    groups = delta.shape[1] // (2 * taps)
    group_size = width // groups
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.gridDim.y * cuda.blockDim.x
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        inside = row % queries
        for c in range(first, width, stride):
            group = c // group_size
            total = f32(0.0)
            for s in range(min(taps, inside + 1)):
                total += (base_kernel[side, s, c] + delta[row, (side * taps + s) * groups + group]) * widen(x[row - s, c])
            out[row, c] = narrow(total, out)
