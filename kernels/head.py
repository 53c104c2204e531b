"""The head with the greedy sampler behind it: gather and final norm, logits with each stripe's best column, the best of all."""

from __future__ import annotations

import math

from kernels.block_reduce import block_total
from kernels.lang import MAX_THREADS, NEG_INF, block_max, cuda, f32, i32, kernel
from kernels.lang_storage import narrow
from kernels.lang_warp import warp_size
from kernels.project import MAX_SLOTS, all_warps, ceil_div, divide, share_of_columns, total_of
from kernels.tile import RING, TILE, TILE_ROWS, TILE_TOKENS, tile_dot

_REGISTERS = 96  # four blocks of five warps on a multiprocessor, and nothing spilled

_PARTIAL = MAX_SLOTS * TILE
_RING = MAX_SLOTS * RING + 4

_ROWS_AT_ONCE = 64
"""Rows whose best columns a block keeps while it goes over its tiles."""

_NONE = i32(2147483647)


@kernel(writes=("out",))
def gather_norm(out, residual, gain, indices, eps, num_rows):
    """out[j] = RMSNorm(residual[indices[j]]) * gain for the live rows.

    Args:
        out: [J, H], any storage type.
        residual: float32 [T, H].
        gain: float32 [H].
        indices: int32 [J], each in [0, T).
        eps: float32.
        num_rows: int32 [1], live rows of `out`.

    Launch: a block a row, threads over the columns. Block `j` owns row j; its barriers are reached by all its threads. Safe under
    capture. Oracle: oracle_fused.gather_norm.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    width = residual.shape[1]
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        source = indices[row]
        squares = f32(0.0)
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            squares += residual[source, i] * residual[source, i]
        scale = f32(1.0) / f32(math.sqrt(block_total(squares, scratch) / f32(width) + eps))
        for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            out[row, i] = narrow(residual[source, i] * scale * gain[i], out)


@kernel(writes=("logits", "best_value", "best_column"), max_registers=_REGISTERS)
def project_argmax(logits, best_value, best_column, x, weight, vocab_size, split, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column.

    Stripe s of S holds every S-th group of tiles. Columns from vocab_size on (padding) and NaN are never best; a stripe without a
    candidate says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: K a multiple of 8.
        vocab_size: int32.
        split: int32, warps that share a tile.
        num_rows: int32 [1], live rows.

    Launch: split * (tiles a block) warps, any grid, S blocks at best. A block owns its stripes. Barriers are reached by all its
    threads. Safe under capture. Oracle: oracle_fused.project_argmax.
    """
    ring = cuda.shared.array(_RING, f32)
    partial = cuda.shared.array(_PARTIAL, f32)
    value_of = cuda.shared.array(_ROWS_AT_ONCE, f32)
    column_of = cuda.shared.array(_ROWS_AT_ONCE, i32)
    outputs, depth, stripes = i32(weight.shape[0]), i32(weight.shape[1]), i32(best_value.shape[0])
    tid = i32(cuda.threadIdx.x)
    warp, warps = divide(tid, warp_size()), all_warps()
    split = min(split, warps)
    per_block = divide(warps, split)
    tiles, share = ceil_div(outputs, i32(TILE_ROWS)), share_of_columns(depth, split)
    group = divide(warp, split)
    begin = i32((warp - group * split) * share)
    for stripe in range(cuda.blockIdx.x, stripes, cuda.gridDim.x):
        for base in range(0, num_rows[0], _ROWS_AT_ONCE):
            kept = min(num_rows[0] - i32(base), i32(_ROWS_AT_ONCE))
            for t in range(tid, kept, cuda.blockDim.x):
                value_of[t] = NEG_INF
                column_of[t] = _NONE
            first = i32(stripe * per_block)
            while first < tiles:
                tile = first + group
                for token in range(0, kept, TILE_TOKENS):
                    rows = min(kept - i32(token), i32(TILE_TOKENS))
                    if warp < per_block * split and tile < tiles:
                        end, row = min(begin + share, depth), tile * i32(TILE_ROWS)
                        tile_dot(ring, partial, warp, x, None, i32(base + token), rows, weight, row, begin, end)
                    cuda.syncthreads()
                    item = tid
                    while item < per_block * rows * TILE_ROWS:
                        which = divide(item, rows * i32(TILE_ROWS))
                        place = item - which * rows * i32(TILE_ROWS)
                        t = divide(place, i32(TILE_ROWS))
                        output = (first + which - t) * i32(TILE_ROWS) + place
                        value = NEG_INF
                        if output < outputs:
                            value = total_of(partial, which * split, i32(1), split, place)
                            logits[base + token + t, output] = value
                        partial[which * split * i32(TILE) + place] = value
                        item += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                    t = tid
                    while t < rows:
                        for which in range(per_block):
                            for n in range(TILE_ROWS):
                                output = (first + i32(which)) * i32(TILE_ROWS) + i32(n)
                                value = partial[i32(which) * split * i32(TILE) + t * i32(TILE_ROWS) + i32(n)]
                                if output < vocab_size and value > value_of[token + t]:
                                    value_of[token + t] = value
                                    column_of[token + t] = output
                        t += i32(cuda.blockDim.x)
                    cuda.syncthreads()
                first += stripes * per_block
            for t in range(tid, kept, cuda.blockDim.x):
                best_value[stripe, base + t] = value_of[t]
                best_column[stripe, base + t] = column_of[t]
            cuda.syncthreads()


@kernel(writes=("out",))
def best_of_stripes(out, best_value, best_column, num_rows):
    """out[j] = best_column[s, j] of the largest best_value[s, j]; the lowest column wins a tie, 0 stands for no candidate.

    Args:
        out: int32 [J].
        best_value: float32 [S, J], never NaN.
        best_column: int32 [S, J].
        num_rows: int32 [1], live rows.

    Launch: a block a row, threads over the stripes. Block `j` owns out[j]; its barriers are reached by all its threads. Safe under
    capture. Oracle: oracle_fused.best_of_stripes.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    winner = cuda.shared.array(1, i32)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        value = NEG_INF
        column = _NONE
        for s in range(cuda.threadIdx.x, best_value.shape[0], cuda.blockDim.x):
            if best_value[s, row] > value or (best_value[s, row] == value and best_column[s, row] < column):
                value = best_value[s, row]
                column = best_column[s, row]
        largest = block_max(value, scratch)
        if cuda.threadIdx.x == 0:
            winner[0] = _NONE
        cuda.syncthreads()
        if value == largest and value > NEG_INF:
            cuda.atomic.min(winner, 0, column)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[row] = winner[0] if winner[0] != _NONE else 0
        cuda.syncthreads()
