"""Large projections of a decode step by products whose weights flow (kernels/flow.py): what stands before and behind each is what
kernels/project.py does."""

from __future__ import annotations

from kernels.behind_product import row_scale
from kernels.exponential import exp
from kernels.flow import (
    PARTIAL,
    RING_BYTES,
    WARPS,
    begin_flow,
    flow_operand,
    flow_tile,
    lines_of,
    open_flow,
)
from kernels.lang import cuda, device_function, f32, i32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_size
from kernels.project import place_of_warp, warp_of_block, warps_of_block
from kernels.tile import TILE, TILE_ROWS, TILE_TOKENS


@device_function
def scales(scale, squares, token, width, eps, scaled):
    """scale[t] = 1 / rms of row token + t, a warp a row; 1 for rows that were normalised before."""
    t = warp_of_block()
    while t < i32(TILE_TOKENS):
        factor = f32(1.0)
        if scaled == i32(0) and token + t < i32(squares.shape[0]):
            factor = row_scale(squares, token + t, width, eps)
        if lane() == 0:
            scale[t] = factor
        t = i32(t + warps_of_block())


@device_function
def flow_total(partial, first, parts, place):
    """Sum of one element of a tile over its parts, in order; `first`: where the sums of the first of them begin."""
    total, at = f32(0.0), first + place
    for _part in range(parts):
        total += partial[at]
        at += i32(2 * TILE)
    return total


@device_function
def flow_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, gated, num_tokens):
    """What the two kernels below do. gated 1: the second slab is of the weight rows that lie half of all further on, and out =
    silu(first) * second; else it is of the next eight."""
    outputs, width, height = i32(weight.shape[0]) >> gated, i32(weight.shape[1]), (i32(2) >> gated) * i32(TILE_ROWS)
    second = outputs if gated > i32(0) else i32(TILE_ROWS)
    warp, parts, group, tiles, flows, part = place_of_warp(min(warps_of_block(), i32(WARPS)), parts)
    line, lines = lines_of(i32(weight.shape[1]), part, parts)
    base, step = i32(cuda.blockIdx.x) * tiles * height, i32(cuda.gridDim.x) * tiles * height
    first, turn = base + group * height, u32(0)
    if flows:
        open_flow(ring, warp)
        begin_flow(ring, weight, first, second, step, outputs, line, lines, warp, turn)
    wait_for_launches()
    let_next_launch_start()
    live, token = i32(num_tokens[0]), i32(0)
    while token < max(live, i32(1)):  # at least once: what was asked for must have come before the block ends
        if token > i32(0) and flows:
            begin_flow(ring, weight, first, second, step, outputs, line, lines, warp, turn)
        held = flow_operand(x, token, line)
        scales(scale, squares, token, width, eps, scaled)
        at, row, side, rows = base, first, i32(0), min(live - token, i32(TILE_TOKENS))
        while at < outputs:
            if flows and row < outputs:
                to = (side * i32(WARPS) + warp) * i32(2 * TILE)
                turn = flow_tile(ring, partial, to, held, x, token, weight, row, second, step, outputs, line, lines, warp, turn)
            cuda.syncthreads()
            item, own = part * warp_size() + lane(), (side * i32(WARPS) + warp - part) * i32(2 * TILE)
            while flows and item < (rows * i32(TILE_ROWS)) << (i32(1) - gated):
                n, slab = item & i32(TILE_ROWS - 1), (item >> i32(3)) & (i32(1) - gated)
                t = item >> (i32(4) - gated)
                output = row + slab * i32(TILE_ROWS) + n
                if output < outputs:
                    place = t * i32(TILE_ROWS) + n
                    total = flow_total(partial, own, parts, slab * i32(TILE) + place) * scale[t]
                    if gated > i32(0):
                        up = flow_total(partial, own, parts, i32(TILE) + place) * scale[t]
                        total = total / (f32(1.0) + exp(-total)) * up
                    out[token + t, output] = narrow(total, out)
                item += parts * warp_size()
            side = i32(1) - side
            at += step
            row += step
        cuda.syncthreads()
        token += i32(TILE_TOKENS)


@kernel(writes=("out",), overlap=True, early=("weight",), shared=RING_BYTES)
def flow_project(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = x[t] @ weight.T / rms[t] for the live tokens, with rms from the sums of squares; scaled 1: not divided by it.

    Args:
        out: [T, N], any storage type.
        x: [T, K], of the weights' type: residual * gain, or with scaled = 1 the norm itself.
        squares: float32 [T, ceil(K / 8)], of the residual.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of LINE, at most parts * MOST_COLUMNS (kernels/flow.py).
        eps: float32.
        scaled: int32, 0 or 1.
        parts: int32, warps that share a tile of 16 outputs.
        num_tokens: int32 [1], live rows.

    Launch: up to WARPS warps, a multiple of `parts`; any grid, at best a block on each multiprocessor. A block owns its tiles of
    `out`. Barriers are reached by all its threads. Safe under capture. Oracle: oracle_fused.norm_project.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    flow_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(0), num_tokens)


@kernel(writes=("out",), overlap=True, early=("weight",), shared=RING_BYTES)
def flow_gate_up(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T / rms[t], for the live tokens.

    Args:
        out: [T, I], any storage type.
        x, squares, eps, scaled, parts, num_tokens: as in `flow_project`.
        weight: [2 I, K], gate first.

    Launch and ownership as in `flow_project`; a tile is 8 outputs, a slab of gate rows and one of up rows.
    Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    flow_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(1), num_tokens)
