"""The head with the greedy sampler behind it: gather and final norm, logits with each stripe's best column, the best of all."""

from __future__ import annotations

import math

from kernels.argmax import NO_TOKEN
from kernels.behind_product import multiplied, sum_of_eight
from kernels.block_reduce import block_best, block_total
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, octet_best, octet_lane, octet_size, warp_barrier, warp_size
from kernels.project import divide, multiplying_warps, warp_of_block
from kernels.tile import (
    TILE,
    TILE_ROWS,
    TILE_TOKENS,
    begin_products,
    begin_rows,
    finish_products,
)

_REGISTERS = 96

_WARPS = 4
"""Warps of a block that multiply at most."""

_RING = _WARPS * 9 * 256 + 4
"""As kernels.tile.RING, for fewer warps."""

_PARTIAL = _WARPS * 2 * TILE


_ROWS_AT_ONCE = 32
"""Rows whose best columns a block keeps while it goes over its tiles."""

_CELLS = _WARPS * 2 * _ROWS_AT_ONCE
"""A best column for each warp, row and slab."""

_NONE = i32(2147483647)


@device_function
def scaled_eight(v, scale):
    return (
        v[0] * scale,
        v[1] * scale,
        v[2] * scale,
        v[3] * scale,
        v[4] * scale,
        v[5] * scale,
        v[6] * scale,
        v[7] * scale,
    )


@kernel(writes=("out",), overlap=True)
def gather_norm(out, residual, gain, indices, eps, num_rows):
    """out[j] = RMSNorm(residual[indices[j]]) * gain for the live rows.

    Args:
        out: [J, H], any storage type.
        residual: float32 [T, H].
        gain: float32 [H].
        indices: int32 [J], each in [0, T).
        eps: float32.
        num_rows: int32 [1], live rows of `out`.

    Launch: a block a row, threads over the columns; with eight columns a thread or fewer a row is read once. Block `j` owns row
    j; its barriers are reached by all its threads. Safe under capture. Oracle: oracle_fused.gather_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    wait_for_launches()
    let_next_launch_start()
    width = i32(residual.shape[1])
    at_once = width & i32(7) == i32(0) and width <= i32(8) * i32(cuda.blockDim.x)
    i = i32(cuda.threadIdx.x) * i32(8)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        source, squares = indices[row], f32(0.0)
        if at_once:  # a thread has eight columns, and keeps them
            values, gains = read_eight(residual, source, min(i, width - i32(8))), read_eight_flat(gain, min(i, width - i32(8)))
            if i < width:
                squares = sum_of_eight(multiplied(values, values))
            scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(width) + eps))
            if i < width:
                write_eight(out, row, i, multiplied(scaled_eight(values, scale), gains))
            continue
        for column in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            squares += residual[source, column] * residual[source, column]
        scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(width) + eps))
        for column in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, column] = narrow(residual[source, column] * scale * gain[column], out)


@kernel(writes=("logits", "best_value", "best_column"), max_registers=_REGISTERS, overlap=True, early=("weight",))
def project_argmax(logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column.

    Stripe s of S holds every S-th group of tiles, as many as a block has warps; a warp goes over its own on its own. Columns from
    vocab_size on (padding) and NaN are never best; a stripe without a candidate says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: K a multiple of 8.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: up to four warps, any grid, S blocks at best. A block owns its stripes. Barriers are reached by all its threads.
    Safe under capture. Oracle: oracle_fused.project_argmax.
    """
    ring = cuda.shared.array(_RING, f32)
    partial = cuda.shared.array(_PARTIAL, f32)
    value_of = cuda.shared.array(_CELLS, f32)
    column_of = cuda.shared.array(_CELLS, i32)
    outputs, stripes, one, slabs = i32(weight.shape[0]), i32(best_value.shape[0]), i32(1), i32(2)
    warp, warps = warp_of_block(), min(multiplying_warps(i32(0), slabs), i32(_WARPS))
    stripe, grid, octets = i32(cuda.blockIdx.x), i32(cuda.gridDim.x), divide(warp_size(), octet_size())
    octet, cells, busy = divide(lane(), octet_size()), warp * i32(2 * _ROWS_AT_ONCE), warp < warps
    first, step = (stripe * warps + warp) * i32(2 * TILE_ROWS), stripes * warps * i32(2 * TILE_ROWS)
    if busy and first < outputs:
        begin_products(ring, weight, first, first + i32(TILE_ROWS), i32(0), one, warp, slabs, i32(0))
    wait_for_launches()
    let_next_launch_start()
    if busy and first < outputs:
        begin_rows(ring, x, i32(0), i32(0), one, warp, slabs)
    live = i32(num_rows[0])
    while stripe < stripes:
        base = i32(0)
        while base < live:
            kept = min(live - base, i32(_ROWS_AT_ONCE))
            item = octet
            while busy and item < kept * slabs:
                if octet_lane() == 0:
                    value_of[cells + item], column_of[cells + item] = NEG_INF, _NONE
                item += octets
            row = first
            while busy and row < outputs:
                token = i32(0)
                while token < kept:
                    second = row + i32(TILE_ROWS)
                    finish_products(ring, partial, x, base + token, weight, row, second, i32(0), one, warp, slabs, i32(0))
                    after, rows_after = row, base + token + i32(TILE_TOKENS)
                    if token + i32(TILE_TOKENS) >= kept:  # the next tile, the first one for more rows, that of the next stripe
                        after, rows_after = row + step, base
                        if after >= outputs and base + kept < live:
                            after, rows_after = first, base + kept
                        elif after >= outputs and stripe + grid < stripes:
                            after, rows_after = first + grid * warps * i32(2 * TILE_ROWS), i32(0)
                    if after < outputs:
                        begin_products(ring, weight, after, after + i32(TILE_ROWS), i32(0), one, warp, slabs, i32(0))
                        begin_rows(ring, x, rows_after, i32(0), one, warp, slabs)
                    warp_barrier()
                    item, rows = octet, min(kept - token, i32(TILE_TOKENS))
                    while item - octet < rows * slabs:  # whole warps: octet_best wants all lanes
                        t, slab = item >> i32(1), item & i32(1)
                        value, column, n = NEG_INF, _NONE, octet_lane()
                        while n < i32(TILE_ROWS):
                            output = row + slab * i32(TILE_ROWS) + n
                            if t < rows and output < outputs:
                                total = partial[(warp * slabs + slab) * i32(TILE) + t * i32(TILE_ROWS) + n]
                                logits[base + token + t, output] = total
                                if output < vocab_size and total > value:
                                    value, column = total, output
                            n += octet_size()
                        value, column = octet_best(value, column)
                        cell = cells + (token << i32(1)) + item
                        if octet_lane() == 0 and t < rows and value > value_of[cell]:
                            value_of[cell], column_of[cell] = value, column
                        item += octets
                    warp_barrier()
                    token += i32(TILE_TOKENS)
                row += step
            cuda.syncthreads()
            t = i32(cuda.threadIdx.x)
            while t < kept:
                value, column = NEG_INF, _NONE
                for which in range(2 * warps):
                    cell = i32(which >> 1) * i32(2 * _ROWS_AT_ONCE) + i32(2) * t + i32(which & 1)
                    if value_of[cell] > value or (value_of[cell] == value and column_of[cell] < column):
                        value, column = value_of[cell], column_of[cell]
                best_value[stripe, base + t], best_column[stripe, base + t] = value, column
                t += i32(cuda.blockDim.x)
            cuda.syncthreads()
            base += kept
        stripe += grid
        first += grid * warps * i32(2 * TILE_ROWS)


@kernel(writes=("out",), overlap=True)
def best_of_stripes(out, best_value, best_column, num_rows):
    """out[j] = best_column[s, j] of the largest best_value[s, j]; the lowest column wins a tie, NO_TOKEN stands for no
    candidate (kernels/argmax.py).

    Args:
        out: int32 [J].
        best_value: float32 [S, J], never NaN.
        best_column: int32 [S, J].
        num_rows: int32 [1], live rows.

    Launch: a block a row, whole warps, threads over the stripes. Block `j` owns out[j]; its barriers are reached by all its
    threads. Safe under capture. Oracle: oracle_fused.best_of_stripes.
    """
    values = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    wait_for_launches()
    let_next_launch_start()
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        value, column = NEG_INF, _NONE
        for s in range(cuda.threadIdx.x, best_value.shape[0], cuda.blockDim.x):
            if best_value[s, row] > value or (best_value[s, row] == value and best_column[s, row] < column):
                value, column = best_value[s, row], best_column[s, row]
        value, column = block_best(value, column, values, columns)
        if cuda.threadIdx.x == 0:
            out[row] = column if value > NEG_INF else NO_TOKEN
