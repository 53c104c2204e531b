"""What stands between two sublayers of a DFlash2 block, in one launch: convolution, residual, norm, and the next convolution.

For few rows: a block computes the dynamic kernels of one group of channels from the whole rows and convolves that group, so that
the rows are read once for each group. Kernels of two taps alone, as every public checkpoint has them.
"""

from __future__ import annotations

import math
from typing import Any

from kernels.lang import SIMULATED, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen
from kernels.lang_warp import lane, primitive, warp_size, warp_sum
from kernels.project import divide

if not SIMULATED:
    import kernels.block_join_gpu as block_join_gpu

TAPS = 2

MAX_QUERIES = 64
"""Rows of a block of masks."""

_KERNELS = 2 * MAX_QUERIES

_GROUP = 32
"""Channels of a group whose rows fit into shared memory."""

_VALUES = MAX_QUERIES * _GROUP

_WIDTH = 1024
"""Channels of a row that a warp has at once on a GPU."""


def _gpu_join(total: Any, out: Any, delta: Any, residual: Any, added: Any, *rest: Any) -> Any:
    return block_join_gpu.JOIN.get(str(rest[4].dtype))


@primitive(lambda: None if SIMULATED else block_join_gpu.yes)
def has_wide_rows():
    """Are `wide_join` and `wide_norm` there?"""
    return False


@primitive(_gpu_join)
def wide_join(
    total, out, delta, residual, added, done_kernel, done_delta, gain, base_kernel, projection, eps, joins, queries, num_requests,
    kernels, scale, values,
):  # fmt: skip
    """What `join_groups` does, on a GPU where `wide_rows` fit; nothing elsewhere."""


@primitive(lambda *types: None if SIMULATED else block_join_gpu.norm_form)
def wide_norm(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens):
    """What `norm_rows` does, on a GPU where `wide_rows` fit; nothing elsewhere."""


@device_function
def wide_rows(width, groups):
    """Do rows of so many channels suit the forms of a GPU: at most four octets a lane, none of them in two groups?"""
    size = divide(width, groups)
    return width <= i32(_WIDTH) and size <= i32(_GROUP) and size & i32(7) == i32(0)


@device_function
def joined(residual, added, done_kernel, done_delta, joins, row, inside, c, group, groups):
    """residual[row, c] + the convolution, side 1, of what the last sublayer yielded; the residual alone where `joins` is 0."""
    value = residual[row, c]
    if joins > i32(0):
        value += (done_kernel[1, 0, c] + done_delta[row, i32(2) * groups + group]) * added[row, c]
        if inside > i32(0):
            value += (done_kernel[1, 1, c] + done_delta[row, i32(3) * groups + group]) * added[row - i32(1), c]
    return value


@device_function
def join_groups(
    total, out, delta, residual, added, done_kernel, done_delta, gain, base_kernel, projection, eps, joins, queries, num_requests,
    kernels, scale,
):  # fmt: skip
    """`join_conv` for any shape."""
    wait_for_launches()
    let_next_launch_start()
    width, groups = i32(residual.shape[1]), i32(delta.shape[1] // 4)
    size = divide(width, groups)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    request = i32(cuda.blockIdx.y)
    while request < num_requests[0]:
        first = request * queries
        own = i32(cuda.blockIdx.x)
        while own < groups:
            inside = i32(warp)
            while inside < queries:
                row = first + inside
                squares, a, b, c, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0)
                for i in range(lane(), width, warp_size()):
                    group = divide(i32(i), size)
                    value = joined(residual, added, done_kernel, done_delta, joins, row, inside, i, group, groups)
                    squares += value * value
                    value *= gain[i]
                    a += widen(projection[own, i]) * value
                    b += widen(projection[groups + own, i]) * value
                    c += widen(projection[i32(2) * groups + own, i]) * value
                    d += widen(projection[i32(3) * groups + own, i]) * value
                shrink = f32(1.0) / f32(math.sqrt(warp_sum(squares) / f32(width) + eps))
                a, b, c, d = warp_sum(a) * shrink, warp_sum(b) * shrink, warp_sum(c) * shrink, warp_sum(d) * shrink
                if lane() == i32(0):
                    scale[inside] = shrink
                    kernels[i32(2) * inside] = a
                    kernels[i32(2) * inside + i32(1)] = b
                    delta[row, own] = a
                    delta[row, groups + own] = b
                    delta[row, i32(2) * groups + own] = c
                    delta[row, i32(3) * groups + own] = d
                inside += warps
            cuda.syncthreads()
            item = i32(cuda.threadIdx.x)
            while item < queries * size:
                inside = divide(item, size)
                row, column = first + inside, own * size + item - inside * size
                value = joined(residual, added, done_kernel, done_delta, joins, row, inside, column, own, groups)
                total[row, column] = value
                result = (base_kernel[0, 0, column] + kernels[i32(2) * inside]) * (value * scale[inside])
                if inside > i32(0):
                    before = inside - i32(1)
                    value = joined(residual, added, done_kernel, done_delta, joins, row - i32(1), before, column, own, groups)
                    share = base_kernel[0, 1, column] + kernels[i32(2) * inside + i32(1)]
                    result += share * (value * scale[before])
                out[row, column] = narrow(result * gain[column], out)
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
            own += i32(cuda.gridDim.x)
        request += i32(cuda.gridDim.y)


@kernel(writes=("total", "out", "delta"), overlap=True)
def join_conv(
    total,
    out,
    delta,
    residual,
    added,
    done_kernel,
    done_delta,
    gain,
    base_kernel,
    projection,
    eps,
    joins,
    queries,
    num_requests,
):
    """total = residual + conv(side 1, added); y = RMSNorm(total) * gain; delta = y @ projection.T; out = conv(side 0, y).

    conv(side, z)[row, c] = sum over s <= min(1, i) of (base[side, s, c] + delta[row, side, s, c's group]) * z[row - s, c], with
    i = row % queries; side 1 of `added` has the kernels of the convolution before: done_kernel and done_delta.

    Args:
        total: float32 [R * Q, H], not `residual`.
        out: [R * Q, H], any storage type.
        delta: float32 [R * Q, 4 * G], not `done_delta`: side and tap, then group; H / G channels a group.
        residual: float32 [R * Q, H].
        added: float32 [R * Q, H], what the last sublayer yielded; not read where `joins` is 0.
        done_kernel: float32 [2, 2, H];  done_delta: float32 [R * Q, 4 * G]: not read where `joins` is 0.
        gain: float32 [H].
        base_kernel: float32 [2, 2, H].
        projection: [4 * G, H], any storage type.
        eps: float32.
        joins: int32, 0 before the first sublayer, else 1.
        queries: int32, Q <= MAX_QUERIES.
        num_requests: int32 [1], live requests.

    Launch: grid (groups, requests), about a warp a row. Block (g, r) owns the channels of group g of request r, in all outputs;
    barriers are reached by all its threads. Safe under capture, and idempotent. Oracle: oracle_dflash.join_conv.
    """
    kernels = cuda.shared.array(_KERNELS, f32)
    scale = cuda.shared.array(MAX_QUERIES, f32)
    values = cuda.shared.array(_VALUES, f32)
    if has_wide_rows() and wide_rows(i32(residual.shape[1]), i32(delta.shape[1] // 4)):
        wide_join(
            total, out, delta, residual, added, done_kernel, done_delta, gain, base_kernel, projection, eps, joins, queries,
            num_requests, kernels, scale, values,
        )  # fmt: skip
    else:
        join_groups(
            total, out, delta, residual, added, done_kernel, done_delta, gain, base_kernel, projection, eps, joins, queries,
            num_requests, kernels, scale,
        )  # fmt: skip


@device_function
def norm_rows(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens):
    """`join_norm` for any shape."""
    wait_for_launches()
    let_next_launch_start()
    width, groups = i32(residual.shape[1]), i32(done_delta.shape[1] // 4)
    size = divide(width, groups)
    warp, warps = divide(cuda.threadIdx.x, warp_size()), max(divide(cuda.blockDim.x, warp_size()), i32(1))
    row = i32(cuda.blockIdx.x)
    while row < num_tokens[0]:
        inside = row - divide(row, queries) * queries
        squares = f32(0.0)
        for i in range(lane(), width, warp_size()):
            group = divide(i32(i), size)
            value = joined(residual, added, done_kernel, done_delta, i32(1), row, inside, i, group, groups)
            squares += value * value
        shrink = f32(1.0) / f32(math.sqrt(warp_sum(squares) / f32(width) + eps))
        i = i32((cuda.blockIdx.y * warps + warp) * warp_size() + lane())
        while i < width:
            group = divide(i, size)
            value = joined(residual, added, done_kernel, done_delta, i32(1), row, inside, i, group, groups)
            out[row, i] = narrow(value * shrink * gain[i], out)
            i += i32(cuda.gridDim.y * warps * warp_size())
        row += i32(cuda.gridDim.x)


@kernel(writes=("out",), overlap=True)
def join_norm(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens):
    """out = RMSNorm(residual + conv(side 1, added)) * gain, behind the last sublayer: `join_conv` without what follows.

    Args:
        out: [R * Q, H], any storage type.
        residual, added, done_kernel, done_delta, gain, eps, queries: as in `join_conv`.
        num_tokens: int32 [1], live rows.

    Launch: grid (rows, n), a warp a slice of a row, n * warps slices: each sums the squares of the whole row. A warp owns its
    slice. No barrier; safe under capture, and idempotent. Oracle: oracle_dflash.join_norm.
    """
    if has_wide_rows() and wide_rows(i32(residual.shape[1]), i32(done_delta.shape[1] // 4)):
        wide_norm(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens)
    else:
        norm_rows(out, residual, added, done_kernel, done_delta, gain, eps, queries, num_tokens)
