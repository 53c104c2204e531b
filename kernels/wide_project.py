"""Projections of a step of many rows: as kernels/project.py, with what stands before and behind them, for up to 64 rows at once.

A verify step of eight requests has 64 rows. The library multiplies them well, but what stands around its products are launches of
their own that nothing overlaps. Here the first weights are under way before the launch before has ended, norm's scale, SwiGLU and
the residual are part of the product, and each weight is read once.

Launch, for all of them: nine whole warps on a GPU, eight where nothing is normalised, and any grid: tiles take turns. With a block
for each part of each tile, all of which run at the same time, parts exchange their sums through memory; with fewer blocks nothing
is shared, so that nobody waits for a block that has not begun. Barriers are reached by all threads of a block: loops depend on
blockIdx and the number of live rows alone. Safe under capture.
"""

from __future__ import annotations

from kernels.behind_product import added, gated_eight, multiplied, sum_of_eight
from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.project import ceil_div, divide, warp_of_block, warps_of_block
from kernels.wide_scale import wide_scales
from kernels.wide_tile import RING_BYTES, WIDE_TOKENS, begin_wide, multiply_wide, own_sum, parts_of, wide_sums

_REGISTERS = 112  # two blocks of nine warps on a multiprocessor

HIGH, LOW = 192, 128
"""Weight rows of a tile: of large matrices, and of those behind which the residual is."""


_SCALES = WIDE_TOKENS + 4


@device_function
def parts_that_run(x, weight, parts, tiles):
    """`parts`, or one where the grid has no block for each of them, or tokens take turns: sums of the next would be left where some
    are still read."""
    parts = parts_of(x, weight, parts)
    return parts if i32(cuda.gridDim.x) >= tiles * parts and i32(x.shape[0]) <= i32(WIDE_TOKENS) else i32(1)


@device_function
def exchange(ring, partial, arrivals, x, weight, height, tile, part, parts, rows, skipped, own):
    """Leave the sums of others' tokens where they look for them, and wait until theirs are there."""
    if parts > i32(1):
        item, first, last = i32(cuda.threadIdx.x), skipped * height, (skipped + own) * height
        while item < rows * height:
            if item < first or item >= last:
                t = divide(item, height)
                partial[tile * parts + part, item] = own_sum(ring, x, weight, t, item - t * height, height)
            item += i32(cuda.blockDim.x)
        cuda.threadfence()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            before = i32(cuda.atomic.add(arrivals, tile, i32(1)))
            goal = i32(i32(before & -parts) + parts)  # every launch adds as many as there are parts: never back to 0
            while i32(i32(cuda.atomic.add(arrivals, tile, i32(0))) - goal) < i32(0):
                pass
            cuda.threadfence()
        cuda.syncthreads()


@device_function
def eight_of(value):
    return value, value, value, value, value, value, value, value


@device_function
def wide_rows(ring, scale, out, partial, arrivals, x, squares, weight, eps, scaled, parts, gated, num_tokens):
    """What the first two kernels below do. gated 1: the lower half of a tile are the weight rows half of all further on, and out =
    silu(upper) * lower."""
    outputs, width, columns = i32(weight.shape[0]) >> gated, i32(weight.shape[1]), i32(HIGH) >> gated
    lower, tiles = outputs if gated > i32(0) else i32(HIGH // 2), ceil_div(outputs, columns)
    parts = parts_that_run(x, weight, parts, tiles)
    tile, threads = divide(i32(cuda.blockIdx.x), parts), i32(cuda.blockDim.x)
    part = i32(cuda.blockIdx.x) - tile * parts
    begun = tile < tiles
    if begun:
        begin_wide(ring, weight, tile * columns, tile * columns + lower, i32(HIGH), part, parts)
    wait_for_launches()
    let_next_launch_start()
    live = i32(num_tokens[0])
    while tile < tiles:
        base, token = tile * columns, i32(0)
        while token < live:
            rows = min(live - token, i32(WIDE_TOKENS))
            share = ceil_div(rows, parts)
            skipped = min(part * share, rows)
            own = min(share, rows - skipped)
            if not begun:
                begin_wide(ring, weight, base, base + lower, i32(HIGH), part, parts)
            begun = False
            multiply_wide(ring, x, token, weight, base, base + lower, i32(HIGH), part, parts)
            if warp_of_block() == warps_of_block() - i32(1):
                wide_scales(scale, squares, token + skipped, own, width, eps, scaled)
            cuda.syncthreads()
            exchange(ring, partial, arrivals, x, weight, i32(HIGH), tile, part, parts, rows, skipped, own)
            item, eights = i32(cuda.threadIdx.x), columns >> i32(3)
            while item < own * eights:
                t = divide(item, eights)
                place, row = (item - t * eights) << i32(3), token + skipped + t
                output, at = base + place, skipped + t
                if output < outputs:
                    values = wide_sums(ring, partial, x, weight, row, output, at, place, i32(HIGH), tile, part, parts)
                    if gated > i32(0):
                        below, there = outputs + output, columns + place
                        ups = wide_sums(ring, partial, x, weight, row, below, at, there, i32(HIGH), tile, part, parts)
                        values = gated_eight(values, ups, scale[t])
                    else:
                        values = multiplied(values, eight_of(scale[t]))
                    write_eight(out, row, output, values)
                item += threads
            cuda.syncthreads()
            token += i32(WIDE_TOKENS)
        tile += divide(i32(cuda.gridDim.x), parts)


@kernel(writes=("out", "partial", "arrivals"), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES)
def wide_project(out, partial, arrivals, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = x[t] @ weight.T / rms[t] for the live tokens, with rms from the sums of squares; scaled 1: not divided by it.

    Args:
        out: [T, N], any storage type; N a multiple of 8.
        partial: float32 [tiles * parts, WIDE_TOKENS * HIGH]: sums on their way from part to part.
        arrivals: int32 [tiles], whose remainders by `parts` are 0, before as afterwards.
        x: [T, K], of the weights' type: residual * gain, or with scaled = 1 the norm itself.
        squares: float32 [T, ceil(K / 8)], of the residual.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        eps: float32.
        scaled: int32, 0 or 1.
        parts: int32, blocks that share the columns of a tile: 1, 2 or 4.
        num_tokens: int32 [1], live rows.

    Launch: as above. A block owns its tokens of its tile of `out`. Idempotent. Oracle: oracle_fused.norm_project.
    """
    ring = cuda.shared.array(0, f32)
    scale = cuda.shared.array(_SCALES, f32)
    wide_rows(ring, scale, out, partial, arrivals, x, squares, weight, eps, scaled, parts, i32(0), num_tokens)


@kernel(writes=("out", "partial", "arrivals"), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES)
def wide_gate_up(out, partial, arrivals, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T / rms[t], for the live tokens.

    Args:
        out: [T, I], any storage type; I a multiple of 8.
        partial, arrivals, x, squares, eps, scaled, parts, num_tokens: as in `wide_project`.
        weight: [2 I, K], gate first.

    A block owns its tokens of its tile of `out`. Idempotent. Launch as there. Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(0, f32)
    scale = cuda.shared.array(_SCALES, f32)
    wide_rows(ring, scale, out, partial, arrivals, x, squares, weight, eps, scaled, parts, i32(1), num_tokens)


@device_function
def wide_add(ring, residual, normed, squares, partial, arrivals, x, weight, gain, parts, num_tokens, features, column):
    """What the two kernels below do."""
    outputs, half = i32(weight.shape[0]), i32(LOW // 2)
    tiles, threads, eights = ceil_div(outputs, i32(LOW)), i32(cuda.blockDim.x), i32(LOW // 8)
    parts = parts_that_run(x, weight, parts, tiles)
    tile = divide(i32(cuda.blockIdx.x), parts)
    part = i32(cuda.blockIdx.x) - tile * parts
    begun = tile < tiles
    if begun:
        begin_wide(ring, weight, tile * i32(LOW), tile * i32(LOW) + half, i32(LOW), part, parts)
    wait_for_launches()
    let_next_launch_start()
    live, last = i32(num_tokens[0]), outputs - i32(8)
    while tile < tiles:
        base, token = tile * i32(LOW), i32(0)
        while token < live:
            rows = min(live - token, i32(WIDE_TOKENS))
            share = ceil_div(rows, parts)
            skipped = min(part * share, rows)
            own = min(share, rows - skipped)
            if not begun:
                begin_wide(ring, weight, base, base + half, i32(LOW), part, parts)
            begun = False
            multiply_wide(ring, x, token, weight, base, base + half, i32(LOW), part, parts)
            item = i32(cuda.threadIdx.x)
            t = divide(item, eights)
            row, output = min(token + skipped + t, live - i32(1)), min(base + ((item - t * eights) << i32(3)), last)
            before, factors = read_eight(residual, row, output), read_eight_flat(gain, output)  # under way meanwhile
            cuda.syncthreads()
            exchange(ring, partial, arrivals, x, weight, i32(LOW), tile, part, parts, rows, skipped, own)
            while item < own * eights:
                t = divide(item, eights)
                place, row, at = (item - t * eights) << i32(3), token + skipped + t, skipped + t
                output = base + place
                if output < outputs:
                    sums = wide_sums(ring, partial, x, weight, row, output, at, place, i32(LOW), tile, part, parts)
                    values = added(before, sums)
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
            token += i32(WIDE_TOKENS)
        tile += divide(i32(cuda.gridDim.x), parts)


@kernel(
    writes=("residual", "normed", "squares", "partial", "arrivals"),
    max_registers=_REGISTERS,
    overlap=True,
    early=("weight",),
    shared=RING_BYTES,
)
def wide_residual(residual, normed, squares, partial, arrivals, x, weight, gain, parts, num_tokens):
    """residual[t] += x[t] @ weight.T for the live tokens; normed = residual * gain, and squares, of the new residual.

    Args:
        residual: float32 [T, N], updated in place; N a multiple of 8.
        normed: [T, N], any storage type.
        squares: float32 [T, N / 8]: sums of squares of columns 8 j .. 8 j + 7.
        partial, arrivals: as in `wide_project`.
        x: [T, K], of the weights' type.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        gain: float32 [N], of the norm behind.
        parts, num_tokens: as in `wide_project`.

    A block owns its tokens of its tile of what it writes. Not idempotent. Launch as there. Oracle: oracle_fused.project_residual.
    """
    ring = cuda.shared.array(0, f32)
    wide_add(ring, residual, normed, squares, partial, arrivals, x, weight, gain, parts, num_tokens, None, i32(0))


@kernel(
    writes=("residual", "normed", "squares", "features", "partial", "arrivals"),
    max_registers=_REGISTERS,
    overlap=True,
    early=("weight",),
    shared=RING_BYTES,
)
def wide_residual_tap(residual, normed, squares, features, partial, arrivals, x, weight, gain, column, parts, num_tokens):
    """`wide_residual`, and features[t, column : column + N] = the new residual.

    Args:
        features: [T, F], any storage type; F and the column are multiples of 8.
        column: int32, first column of the tap.
        others: as in `wide_residual`.

    A block owns its tokens of its tile of what it writes. Not idempotent. Launch as there. Oracle:
    oracle_fused.project_residual_tap.
    """
    ring = cuda.shared.array(0, f32)
    wide_add(ring, residual, normed, squares, partial, arrivals, x, weight, gain, parts, num_tokens, features, column)
