"""Reductions over a block through its warps: two barriers instead of two a halving."""

from __future__ import annotations

from kernels.lang import block_sum, cuda, device_function, f32, i32
from kernels.lang_warp import lane, warp_size, warp_sum


@device_function
def block_total(value, scratch):
    """Sum of `value` over the block, returned to every thread. A block that is not whole warps takes the tree of lang.block_sum.

    scratch: float32 shared [>= blockDim.x]; free for reuse on return. The order of the sum depends on blockDim alone.
    """
    threads, width = i32(cuda.blockDim.x), warp_size()
    if threads % width != i32(0):
        return block_sum(value, scratch)
    within = warp_sum(value)
    if lane() == i32(0):
        scratch[i32(cuda.threadIdx.x) // width] = within
    cuda.syncthreads()
    total = f32(0.0)
    for warp in range(lane(), threads // width, width):
        total += scratch[warp]
    total = warp_sum(total)
    cuda.syncthreads()
    return total
