"""The product behind which the residual is, of a step of many rows: parts of its columns side by side, and what adds them up.

A matrix of few rows has too few tiles for a GPU (kernels/wide_tile.py). So several blocks share the columns of each, and leave what
they summed beside each other; the launch behind, which normalises whole rows anyway, adds them to the residual in order.
"""

from __future__ import annotations

from kernels.add_norm import add_norm_eights
from kernels.lang import MAX_THREADS, cuda, f32, i32, kernel
from kernels.lang_overlap import early_count, let_next_launch_start, wait_for_launches
from kernels.project import ceil_div, divide
from kernels.wide_shape import HEIGHT
from kernels.wide_tile import RING_BYTES, WIDE_TOKENS, begin_parts, has_tiles, parts_of_threads, store_parts


@kernel(writes=("out",), max_registers=128, overlap=True, early=("weight", "num_tokens"), shared=RING_BYTES)
def wide_parts(out, x, weight, parts, num_tokens):
    """out[t, p * N + n] = sum of x[t, k] * weight[n, k] over the columns k of part p, every parts-th chunk from p on, for the live
    tokens.

    Args:
        out: float32 [T, parts * N or more]; N a multiple of 8.
        x: [T, K], of the weights' type.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        parts: int32, at most MOST_PARTS.
        num_tokens: int32 [1], live rows.

    Launch: eight whole warps on a GPU, any grid: parts of tiles of HEIGHT columns take turns. A block owns what it writes. Barriers
    are reached by all its threads. Idempotent; safe under capture. Oracle: oracle_fused.wide_parts.
    """
    ring = cuda.shared.array(0, f32)
    outputs, item = i32(weight.shape[0]), i32(cuda.blockIdx.x)
    items = ceil_div(outputs, i32(HEIGHT)) * parts
    begun, live = item < items, early_count(num_tokens)
    if begun:
        first = divide(item, parts) * i32(HEIGHT)
        begin_parts(ring, weight, first, item - divide(item, parts) * parts, parts)
    wait_for_launches()
    let_next_launch_start()
    while item < items:
        tile, token = divide(item, parts), i32(0)
        part, base = item - tile * parts, tile * i32(HEIGHT)
        while token < live:
            if not begun:
                begin_parts(ring, weight, base, part, parts)
            begun = False
            if has_tiles(x, weight):
                store_parts(ring, out, x, token, live, weight, base, part, parts)
            else:
                parts_of_threads(out, x, token, live, weight, base, part, parts)
            cuda.syncthreads()
            token += i32(WIDE_TOKENS)
        item += i32(cuda.gridDim.x)


@kernel(writes=("residual", "normed"), max_registers=128, overlap=True, early=("gain", "num_tokens"))
def add_parts(residual, normed, x, gain, eps, parts, num_tokens):
    """residual[t] += the sum over p of x[t, p * H : (p + 1) * H]; normed[t] = RMSNorm(residual[t]) * gain for the live tokens.

    Args:
        residual: float32 [T, H], updated in place; H a multiple of 8.
        normed: [T, H], any storage type.
        x: float32 [T, parts * H or more].
        gain: float32 [H].
        eps: float32.
        parts: int32, at most MOST_PARTS.
        num_tokens: int32 [1], live rows.

    Launch: a block a token, whole warps, threads over eight columns each, which belong to that thread. The sum of squares is a
    block reduction (its barriers are reached by every thread: the row loop depends on blockIdx alone). Safe under capture, and not
    idempotent. Oracle: oracle_fused.add_parts.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    add_norm_eights(residual, normed, None, x, gain, eps, i32(0), parts, num_tokens, scratch)


@kernel(writes=("residual", "normed", "features"), max_registers=128, overlap=True, early=("gain", "num_tokens"))
def add_parts_tap(residual, normed, features, x, gain, eps, column, parts, num_tokens):
    """`add_parts`, and features[t, column : column + H] = the new residual.

    Args:
        features: [T, F], any storage type; F and column are multiples of 8.
        column: int32, first column of the tap.
        others: as in `add_parts`.

    Launch, ownership and barriers as there. Safe under capture, and not idempotent. Oracle: oracle_fused.add_parts_tap.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    add_norm_eights(residual, normed, features, x, gain, eps, column, parts, num_tokens, scratch)
