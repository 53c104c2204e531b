"""Projections of a step of many rows: as kernels/project.py, with what stands before and behind them, for up to 64 rows at once.

A verify step of eight requests has 64 rows. The library multiplies them well, but what stands around its products are launches of
their own that nothing overlaps. Here the first weights are under way before the launch before has ended, norm's scale, SwiGLU and
the residual are part of the product, and each weight is read once.

Launch, for all of them: nine whole warps on a GPU, eight where nothing is normalised, and any grid: tiles take turns. Where the
kernel is launched in clusters each is a tile's, and each of its blocks finishes a share of the tokens. Barriers are reached by all
threads of a cluster: loops depend on blockIdx and the number of live rows alone. Safe under capture.
"""

from __future__ import annotations

from kernels.behind_product import added, gated_eight, multiplied, sum_of_eight
from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import cluster_barrier, cluster_rank, cluster_size, let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_size
from kernels.project import ceil_div, divide, scales_of_rows, warp_of_block, warps_of_block
from kernels.tile import TILE_TOKENS
from kernels.wide_tile import RING_BYTES, WIDE_TOKENS, begin_wide, multiply_wide, wide_sums

_REGISTERS = 112  # two blocks of nine warps on a multiprocessor

HIGH, LOW = 192, 128
"""Weight rows of a tile: of large matrices, and of those behind which the residual is."""


@device_function
def wide_scales(scale, squares, token, rows, width, eps, scaled):
    """scale[t] = 1 / rms of row token + t < rows, by the last warp of the block; 1 for rows that were normalised before."""
    if warp_of_block() == warps_of_block() - i32(1):
        first = i32(0)
        while first < rows:
            if scaled == i32(0):
                scales_of_rows(scale[first:], squares, token + first, width, eps)
            else:
                for t in range(lane(), TILE_TOKENS, warp_size()):
                    scale[first + t] = f32(1.0)
            first += i32(TILE_TOKENS)


@device_function
def eight_of(value):
    return value, value, value, value, value, value, value, value


@device_function
def wide_rows(ring, scale, out, x, squares, weight, eps, scaled, gated, num_tokens):
    """What the first two kernels below do. gated 1: the lower half of a tile are the weight rows half of all further on, and out =
    silu(upper) * lower."""
    outputs, width, columns = i32(weight.shape[0]) >> gated, i32(weight.shape[1]), i32(HIGH) >> gated
    lower = outputs if gated > i32(0) else i32(HIGH // 2)
    rank, ranks, threads = cluster_rank(), cluster_size(), i32(cuda.blockDim.x)
    base, step = divide(i32(cuda.blockIdx.x), ranks) * columns, divide(i32(cuda.gridDim.x), ranks) * columns
    begun = base < outputs
    if begun:
        begin_wide(ring, weight, base, base + lower, i32(HIGH))
    wait_for_launches()
    let_next_launch_start()
    live = i32(num_tokens[0])
    while base < outputs:
        token = i32(0)
        while token < live:
            rows = min(live - token, i32(WIDE_TOKENS))
            share = ceil_div(rows, ranks)
            skipped = rank * share
            own = min(share, rows - skipped)
            if not begun:
                begin_wide(ring, weight, base, base + lower, i32(HIGH))
            begun = False
            multiply_wide(ring, x, token, weight, base, base + lower, i32(HIGH))
            wide_scales(scale, squares, token + skipped, own, width, eps, scaled)
            cuda.syncthreads()
            cluster_barrier()
            item, eights = i32(cuda.threadIdx.x), columns >> i32(3)
            while item < own * eights:
                t = divide(item, eights)
                place, row = (item - t * eights) << i32(3), token + skipped + t
                output = base + place
                if output < outputs:
                    values = wide_sums(ring, x, weight, row, output, skipped + t, place, i32(HIGH))
                    if gated > i32(0):
                        ups = wide_sums(ring, x, weight, row, outputs + output, skipped + t, columns + place, i32(HIGH))
                        values = gated_eight(values, ups, scale[t])
                    else:
                        values = multiplied(values, eight_of(scale[t]))
                    write_eight(out, row, output, values)
                item += threads
            cuda.syncthreads()
            cluster_barrier()
            token += i32(WIDE_TOKENS)
        base += step


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES)
def wide_project(out, x, squares, weight, eps, scaled, num_tokens):
    """out[t] = x[t] @ weight.T / rms[t] for the live tokens, with rms from the sums of squares; scaled 1: not divided by it.

    Args:
        out: [T, N], any storage type; N a multiple of 8.
        x: [T, K], of the weights' type: residual * gain, or with scaled = 1 the norm itself.
        squares: float32 [T, ceil(K / 8)], of the residual.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        eps: float32.
        scaled: int32, 0 or 1.
        num_tokens: int32 [1], live rows.

    A cluster owns its tiles of `out`. Idempotent. Oracle: oracle_fused.norm_project.
    """
    ring = cuda.shared.array(0, f32)
    scale = cuda.shared.array(WIDE_TOKENS, f32)
    wide_rows(ring, scale, out, x, squares, weight, eps, scaled, i32(0), num_tokens)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES)
def wide_gate_up(out, x, squares, weight, eps, scaled, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T / rms[t], for the live tokens.

    Args:
        out: [T, I], any storage type; I a multiple of 8.
        x, squares, eps, scaled, num_tokens: as in `wide_project`.
        weight: [2 I, K], gate first.

    A cluster owns its tiles of `out`. Idempotent. Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(0, f32)
    scale = cuda.shared.array(WIDE_TOKENS, f32)
    wide_rows(ring, scale, out, x, squares, weight, eps, scaled, i32(1), num_tokens)


@device_function
def wide_add(ring, residual, normed, squares, x, weight, gain, num_tokens, features, column):
    """What the two kernels below do."""
    outputs, half = i32(weight.shape[0]), i32(LOW // 2)
    rank, ranks, threads, eights = cluster_rank(), cluster_size(), i32(cuda.blockDim.x), i32(LOW // 8)
    base, step = divide(i32(cuda.blockIdx.x), ranks) * i32(LOW), divide(i32(cuda.gridDim.x), ranks) * i32(LOW)
    begun = base < outputs
    if begun:
        begin_wide(ring, weight, base, base + half, i32(LOW))
    wait_for_launches()
    let_next_launch_start()
    live, last = i32(num_tokens[0]), outputs - i32(8)
    while base < outputs:
        token = i32(0)
        while token < live:
            rows = min(live - token, i32(WIDE_TOKENS))
            share = ceil_div(rows, ranks)
            skipped = rank * share
            own = min(share, rows - skipped)
            if not begun:
                begin_wide(ring, weight, base, base + half, i32(LOW))
            begun = False
            multiply_wide(ring, x, token, weight, base, base + half, i32(LOW))
            item = i32(cuda.threadIdx.x)
            t = divide(item, eights)
            row, output = min(token + skipped + t, live - i32(1)), min(base + ((item - t * eights) << i32(3)), last)
            before, factors = read_eight(residual, row, output), read_eight_flat(gain, output)  # under way at the barriers
            cuda.syncthreads()
            cluster_barrier()
            while item < own * eights:
                t = divide(item, eights)
                place, row = (item - t * eights) << i32(3), token + skipped + t
                output = base + place
                if output < outputs:
                    values = added(before, wide_sums(ring, x, weight, row, output, skipped + t, place, i32(LOW)))
                    write_eight(residual, row, output, values)
                    write_eight(normed, row, output, multiplied(values, factors))
                    if features is not None:
                        write_eight(features, row, column + output, values)
                    squares[row, output >> i32(3)] = sum_of_eight(multiplied(values, values))
                item += threads
                if item < own * eights:
                    t = divide(item, eights)
                    row, output = token + skipped + t, min(base + ((item - t * eights) << i32(3)), last)
                    before, factors = read_eight(residual, row, output), read_eight_flat(gain, output)
            cuda.syncthreads()
            cluster_barrier()
            token += i32(WIDE_TOKENS)
        base += step


@kernel(writes=("residual", "normed", "squares"), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES)
def wide_residual(residual, normed, squares, x, weight, gain, num_tokens):
    """residual[t] += x[t] @ weight.T for the live tokens; normed = residual * gain, and squares, of the new residual.

    Args:
        residual: float32 [T, N], updated in place; N a multiple of 8.
        normed: [T, N], any storage type.
        squares: float32 [T, N / 8]: sums of squares of columns 8 j .. 8 j + 7.
        x: [T, K], of the weights' type.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        gain: float32 [N], of the norm behind.
        num_tokens: int32 [1], live rows.

    A cluster owns its tiles of what it writes. Not idempotent. Oracle: oracle_fused.project_residual.
    """
    ring = cuda.shared.array(0, f32)
    wide_add(ring, residual, normed, squares, x, weight, gain, num_tokens, None, i32(0))


@kernel(
    writes=("residual", "normed", "squares", "features"),
    max_registers=_REGISTERS,
    overlap=True,
    early=("weight",),
    shared=RING_BYTES,
)
def wide_residual_tap(residual, normed, squares, features, x, weight, gain, column, num_tokens):
    """`wide_residual`, and features[t, column : column + N] = the new residual.

    Args:
        features: [T, F], any storage type; F and the column are multiples of 8.
        column: int32, first column of the tap.
        others: as in `wide_residual`.

    A cluster owns its tiles of what it writes. Not idempotent. Oracle: oracle_fused.project_residual_tap.
    """
    ring = cuda.shared.array(0, f32)
    wide_add(ring, residual, normed, squares, x, weight, gain, num_tokens, features, column)
