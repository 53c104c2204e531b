"""Projections of a decode or verify step, each one kernel with what stands before and behind it: norm, residual, SwiGLU.

A decode step of a small model is bound by the number of its kernels, that of a large one by the bytes of its weights. So the
norm is taken into the product: `squares` holds, for each row of the residual stream and each tile of 8 columns, their sum of
squares (written by whoever last changed the residual), the product runs over residual * gain, and the scale 1 / rms is applied to
its result, which is the same by linearity (Zhang and Sennrich, 2019, for the norm; Shazeer, 2020, for SwiGLU).

Launch, for all of them: blocks of a few warps. `split` warps share the columns of a tile (fixed by the shape alone, never by the
batch), their sums meet in shared memory, in order. The last warp of a block sums the squares while the others multiply. Weights
are read once for each 16 rows of activations. Loops whose stride is known at run time alone are while loops: Numba's range would
divide in 64 bits, a hundred cycles in kernels of four thousand.
"""

from __future__ import annotations

import math

from kernels.exponential import exp
from kernels.lang import cuda, device_function, f32, i32, kernel, u32
from kernels.lang_storage import by_dtype, narrow, widen
from kernels.lang_warp import lane, warp_size, warp_sum
from kernels.tile import CHUNK, RING, RING_PAIR, TILE, TILE_ROWS, TILE_TOKENS, tile_dot, tile_dot_pair

MAX_SLOTS = 8
"""Warps of a block that multiply."""

MAX_NORM_SLOTS = 4
"""The same where a further warp sums the squares: more would take shared memory from other blocks."""

_REGISTERS = 96  # four blocks of five warps on a multiprocessor, and nothing spilled

_PARTIAL = MAX_SLOTS * TILE
_PARTIAL_PAIR = 2 * MAX_NORM_SLOTS * TILE
_RING = MAX_SLOTS * RING + 4
_RING_NORM = MAX_NORM_SLOTS * RING + 4
_RING_PAIR = MAX_NORM_SLOTS * RING_PAIR + 4


def _inverse_rms(x, squares, token, width, eps):
    total = f32(0.0)
    for i in range(lane(), squares.shape[1], warp_size()):
        total += squares[token, i]
    return f32(1.0) / f32(math.sqrt(warp_sum(total) / f32(width) + eps))


def _no_scale(x, squares, token, width, eps):
    return f32(1.0)


inverse_rms = by_dtype(
    "inverse_rms",
    0,
    {"float32": _inverse_rms, "float16": _no_scale, "uint16": _no_scale, "int16": _no_scale},
    """inverse_rms(x, squares, token, width, eps): 1 / rms of a row of the residual, from its sums of squares; 1 for 16-bit rows,
    which were normalised before. Called by a whole warp.""",
)


@device_function
def multiplying_warps():
    """Warps of this block that multiply: all but the last, which sums the squares; the only one does both."""
    return min(max(divide(cuda.blockDim.x, warp_size()) - i32(1), i32(1)), i32(MAX_NORM_SLOTS))


@device_function
def all_warps():
    """Warps of this block, where nobody has to sum squares."""
    return min(max(divide(cuda.blockDim.x, warp_size()), i32(1)), i32(MAX_SLOTS))


@device_function
def divide(a, b):
    """a // b of positive int32 in 32 bits: Numba would divide in 64, which is a call on a GPU."""
    return i32(u32(a) // u32(b))


@device_function
def ceil_div(a, b):
    """Positive int32, rounded up."""
    return divide(i32(a + b - i32(1)), b)


@device_function
def share_of_columns(depth, split):
    """Columns of each of the `split` warps of a tile, a multiple of CHUNK."""
    return i32(ceil_div(ceil_div(i32(depth), i32(CHUNK)), split) * i32(CHUNK))


@device_function
def total_of(partial, slot, stride, split, place):
    """Sum of one element over the `split` slots from `slot` on, in order."""
    total = f32(0.0)
    for part in range(split):
        total += partial[(slot + i32(part) * stride) * i32(TILE) + place]
    return total


@device_function
def norm_scales(scale, x, squares, token, rows, eps):
    """scale[t] = 1 / rms of row token + t, by the last warp of the block. scale: float32 shared [TILE_TOKENS]."""
    last = max(divide(cuda.blockDim.x, warp_size()) - i32(1), i32(0))
    if divide(cuda.threadIdx.x, warp_size()) == last:
        for t in range(rows):
            value = inverse_rms(x, squares, token + t, x.shape[1], eps)
            if lane() == 0:
                scale[t] = value


@kernel(writes=("residual", "squares"))
def embed_squares(residual, squares, table, input_ids, num_tokens):
    """residual[t] = table[input_ids[t]], zeros for an id outside [0, V); squares[t, j] = sum of squares of columns 8 j .. 8 j + 7.

    Args:
        residual: float32 [T, H].
        squares: float32 [T, ceil(H / 8)].
        table: [V, H], any storage type.
        input_ids: int32 [T].
        num_tokens: int32 [1], live rows.

    Launch: a block a token, a thread a tile of 8 columns. No barrier; safe under capture. Oracle: oracle_fused.embed_squares.
    """
    vocabulary, width = table.shape
    for row in range(cuda.blockIdx.x, num_tokens[0], cuda.gridDim.x):
        token = input_ids[row]
        known = token >= 0 and token < vocabulary
        for tile in range(cuda.threadIdx.x, squares.shape[1], cuda.blockDim.x):
            total = f32(0.0)
            for i in range(tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, width)):
                value = f32(0.0)
                if known:
                    value = widen(table[token, i])
                residual[row, i] = value
                total += value * value
            squares[row, tile] = total


@kernel(writes=("out",), max_registers=_REGISTERS)
def norm_project(out, x, gain, squares, weight, eps, split, num_tokens):
    """out[t] = RMSNorm(x[t]) @ weight.T for the live tokens; a 16-bit x is normalised already, and this is the product alone.

    Args:
        out: [T, N], any storage type.
        x: float32 [T, K], the residual; or [T, K] of the weights' 16-bit type.
        gain: float32 [K].
        squares: float32 [T, ceil(K / 8)].
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        eps: float32.
        split: int32, warps that share a tile.
        num_tokens: int32 [1], live rows.

    Launch: (split * tiles a block + 1) warps, any grid. A block owns its tiles of `out`. Barriers are reached by all its threads.
    Safe under capture. Oracle: oracle_fused.norm_project.
    """
    ring = cuda.shared.array(_RING_NORM, f32)
    partial = cuda.shared.array(_PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    outputs, depth = i32(weight.shape[0]), i32(weight.shape[1])
    warp, warps = divide(cuda.threadIdx.x, warp_size()), multiplying_warps()
    split = min(split, warps)
    per_block = divide(warps, split)
    tiles, share = ceil_div(outputs, i32(TILE_ROWS)), share_of_columns(depth, split)
    group = divide(warp, split)
    begin = i32((warp - group * split) * share)
    first = i32(cuda.blockIdx.x * per_block)
    while first < tiles:
        tile = first + group
        for token in range(0, num_tokens[0], TILE_TOKENS):
            rows = min(num_tokens[0] - i32(token), i32(TILE_TOKENS))
            if warp < per_block * split and tile < tiles:
                end = min(begin + share, depth)
                tile_dot(ring, partial, warp, x, gain, i32(token), rows, weight, tile * i32(TILE_ROWS), begin, end)
            norm_scales(scale, x, squares, i32(token), rows, eps)
            cuda.syncthreads()
            item = i32(cuda.threadIdx.x)
            while item < per_block * rows * TILE_ROWS:
                which = divide(item, rows * i32(TILE_ROWS))
                place = item - which * rows * i32(TILE_ROWS)
                t = divide(place, i32(TILE_ROWS))
                output = (first + which - t) * i32(TILE_ROWS) + place
                if output < outputs:
                    total = total_of(partial, which * split, i32(1), split, place)
                    out[token + t, output] = narrow(total * scale[t], out)
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
        first += i32(cuda.gridDim.x * per_block)


@kernel(writes=("out",), max_registers=_REGISTERS)
def norm_gate_up(out, x, gain, squares, weight, eps, split, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = RMSNorm(x[t]) @ weight.T, for the live tokens.

    Args:
        out: [T, I], any storage type.
        x, gain, squares, eps, split, num_tokens: as in `norm_project`.
        weight: [2 I, K], gate first.

    Launch and ownership as in `norm_project`; a warp takes a gate tile and its up tile. Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(_RING_PAIR, f32)
    partial = cuda.shared.array(_PARTIAL_PAIR, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    outputs, depth = i32(weight.shape[0]) // i32(2), i32(weight.shape[1])
    warp, warps = divide(cuda.threadIdx.x, warp_size()), multiplying_warps()
    split = min(split, warps)
    per_block = divide(warps, split)
    tiles, share = ceil_div(outputs, i32(TILE_ROWS)), share_of_columns(depth, split)
    group = divide(warp, split)
    begin = i32((warp - group * split) * share)
    first = i32(cuda.blockIdx.x * per_block)
    while first < tiles:
        tile = first + group
        for token in range(0, num_tokens[0], TILE_TOKENS):
            rows = min(num_tokens[0] - i32(token), i32(TILE_TOKENS))
            if warp < per_block * split and tile < tiles:
                end, row = min(begin + share, depth), tile * i32(TILE_ROWS)
                tile_dot_pair(ring, partial, warp * i32(2), x, gain, i32(token), rows, weight, row, outputs + row, begin, end)
            norm_scales(scale, x, squares, i32(token), rows, eps)
            cuda.syncthreads()
            item = i32(cuda.threadIdx.x)
            while item < per_block * rows * TILE_ROWS:
                which = divide(item, rows * i32(TILE_ROWS))
                place = item - which * rows * i32(TILE_ROWS)
                t = divide(place, i32(TILE_ROWS))
                output = (first + which - t) * i32(TILE_ROWS) + place
                if output < outputs:
                    slot = which * split * i32(2)
                    gate = total_of(partial, slot, i32(2), split, place) * scale[t]
                    up = total_of(partial, slot + i32(1), i32(2), split, place) * scale[t]
                    out[token + t, output] = narrow(gate / (f32(1.0) + exp(-gate)) * up, out)
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
        first += i32(cuda.gridDim.x * per_block)


@kernel(writes=("residual", "squares"), max_registers=_REGISTERS)
def project_residual(residual, squares, x, weight, split, num_tokens):
    """residual[t] += x[t] @ weight.T; squares[t, j] = sum of squares of the new columns 8 j .. 8 j + 7, for the live tokens.

    Args:
        residual: float32 [T, N], updated in place.
        squares: float32 [T, ceil(N / 8)].
        x: [T, K], of the weights' type.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        split: int32, warps that share a tile.
        num_tokens: int32 [1], live rows.

    Launch: split * (tiles a block) warps, any grid. A block owns its tiles of `residual` and `squares`. Barriers are reached by all
    its threads. Safe under capture, and not idempotent. Oracle: oracle_fused.project_residual.
    """
    ring = cuda.shared.array(_RING, f32)
    partial = cuda.shared.array(_PARTIAL, f32)
    outputs, depth = i32(weight.shape[0]), i32(weight.shape[1])
    warp, warps = divide(cuda.threadIdx.x, warp_size()), all_warps()
    split = min(split, warps)
    per_block = divide(warps, split)
    tiles, share = ceil_div(outputs, i32(TILE_ROWS)), share_of_columns(depth, split)
    group = divide(warp, split)
    begin = i32((warp - group * split) * share)
    first = i32(cuda.blockIdx.x * per_block)
    while first < tiles:
        tile = first + group
        for token in range(0, num_tokens[0], TILE_TOKENS):
            rows = min(num_tokens[0] - i32(token), i32(TILE_TOKENS))
            if warp < per_block * split and tile < tiles:
                end = min(begin + share, depth)
                tile_dot(ring, partial, warp, x, None, i32(token), rows, weight, tile * i32(TILE_ROWS), begin, end)
            cuda.syncthreads()
            item = i32(cuda.threadIdx.x)
            while item < per_block * rows * TILE_ROWS:
                which = divide(item, rows * i32(TILE_ROWS))
                place = item - which * rows * i32(TILE_ROWS)
                t = divide(place, i32(TILE_ROWS))
                output = (first + which - t) * i32(TILE_ROWS) + place
                value = f32(0.0)
                if output < outputs:
                    value = residual[token + t, output] + total_of(partial, which * split, i32(1), split, place)
                    residual[token + t, output] = value
                partial[which * split * i32(TILE) + place] = value * value
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
            item = i32(cuda.threadIdx.x)
            while item < per_block * rows:
                which = divide(item, rows)
                t = item - which * rows
                if first + which < tiles:
                    total = f32(0.0)
                    for n in range(TILE_ROWS):
                        total += partial[which * split * i32(TILE) + t * i32(TILE_ROWS) + i32(n)]
                    squares[token + t, first + which] = total
                item += i32(cuda.blockDim.x)
            cuda.syncthreads()
        first += i32(cuda.gridDim.x * per_block)
