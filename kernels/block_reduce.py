"""Reductions over a block through its warps: two barriers instead of two a halving."""

from __future__ import annotations

from kernels.lang import block_max, block_sum, cuda, device_function, f32, i32
from kernels.lang_warp import lane, warp_max, warp_size, warp_sum


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


@device_function
def block_largest(value, scratch):
    """Largest `value` of the block, returned to every thread; NaN is not for it. scratch and blocks as in `block_total`."""
    threads, width = i32(cuda.blockDim.x), warp_size()
    if threads % width != i32(0):
        return block_max(value, scratch)
    within = warp_max(value)
    if lane() == i32(0):
        scratch[i32(cuda.threadIdx.x) // width] = within
    cuda.syncthreads()
    largest = scratch[0]
    for warp in range(lane(), threads // width, width):
        largest = max(largest, scratch[warp])
    largest = warp_max(largest)
    cuda.syncthreads()
    return largest


@device_function
def block_best(value, column, values, columns):
    """The largest `value` of the block and the lowest `column` that goes with it, returned to every thread.

    values float32, columns int32 shared [>= warps of the block]; free for reuse on return. On a GPU a block is whole warps. NaN is
    not for it.
    """
    warps = i32(cuda.blockDim.x) // warp_size()
    largest = warp_max(value)
    lowest = i32(-warp_max(i32(-column) if value == largest else i32(-2147483647)))
    if lane() == i32(0):
        values[i32(cuda.threadIdx.x) // warp_size()] = largest
        columns[i32(cuda.threadIdx.x) // warp_size()] = lowest
    cuda.syncthreads()
    largest, lowest = values[0], columns[0]
    for warp in range(1, warps):
        if values[warp] > largest or (values[warp] == largest and columns[warp] < lowest):
            largest, lowest = values[warp], columns[warp]
    cuda.syncthreads()
    return largest, lowest


@device_function
def warp_of_grid():
    """Number of this thread's warp, counted over the grid: whatever a warp does alone is shared out by it."""
    return i32(cuda.grid(1)) // warp_size()


@device_function
def warps_of_grid():
    return i32(cuda.gridsize(1)) // warp_size()
