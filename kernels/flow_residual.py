"""Additions to the residual by products whose weights flow (kernels/flow.py): as `project_residual` of kernels/project.py."""

from __future__ import annotations

from kernels.flow import PARTIAL, RING_BYTES, WARPS, begin_flow, flow_operand, flow_tile, lines_of, open_flow
from kernels.flow_project import flow_total
from kernels.lang import cuda, device_function, f32, i32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, octet_lane, octet_size, octet_sum, warp_size
from kernels.project import divide, place_of_warp, put_sum, warps_of_block
from kernels.tile import TILE, TILE_ROWS, TILE_TOKENS


@device_function
def flow_add(ring, partial, residual, normed, squares, x, weight, gain, parts, num_tokens, features, column):
    """What the two kernels below do; `features` None: no tap."""
    outputs, height, second = i32(weight.shape[0]), i32(2 * TILE_ROWS), i32(TILE_ROWS)
    warp, parts, group, tiles, flows, part = place_of_warp(min(warps_of_block(), i32(WARPS)), parts)
    line, lines = lines_of(i32(weight.shape[1]), part, parts)
    base, step = i32(cuda.blockIdx.x) * tiles * height, i32(cuda.gridDim.x) * tiles * height
    first, turn = base + group * height, u32(0)
    octet, octets = divide(part * warp_size() + lane(), octet_size()), divide(parts * warp_size(), octet_size())
    own_t, own_slab = octet >> i32(1), octet & i32(1)
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
        at, row, side, rows = base, first, i32(0), min(live - token, i32(TILE_TOKENS))
        while at < outputs:
            before, factor, own_output = f32(0.0), f32(0.0), row + own_slab * i32(TILE_ROWS) + octet_lane()
            if flows and own_t < rows and own_output < outputs:  # asked for now, so that nobody waits for it behind the product
                before, factor = residual[token + own_t, own_output], gain[own_output]
            if flows and row < outputs:
                to = (side * i32(WARPS) + warp) * i32(2 * TILE)
                turn = flow_tile(ring, partial, to, held, x, token, weight, row, second, step, outputs, line, lines, warp, turn)
            cuda.syncthreads()
            item, own = octet, (side * i32(WARPS) + warp - part) * i32(2 * TILE)
            while flows and item - (item & i32(3)) < rows * i32(2):  # whole warps: octet_sum wants all lanes
                t, slab, squared, n = item >> i32(1), item & i32(1), f32(0.0), octet_lane()
                while n < i32(TILE_ROWS):
                    output = row + slab * i32(TILE_ROWS) + n
                    if t < rows and output < outputs:
                        mine = item == octet and n == octet_lane()
                        value = before if mine else residual[token + t, output]
                        value += flow_total(partial, own, parts, slab * i32(TILE) + t * i32(TILE_ROWS) + n)
                        put_sum(residual, normed, features, column, token + t, output, value, factor if mine else gain[output])
                        squared += value * value
                    n += octet_size()
                squared = octet_sum(squared)
                output = row + slab * i32(TILE_ROWS)
                if octet_lane() == 0 and t < rows and output < outputs:
                    squares[token + t, divide(output, i32(TILE_ROWS))] = squared
                item += octets
            side = i32(1) - side
            at += step
            row += step
        cuda.syncthreads()
        token += i32(TILE_TOKENS)


@kernel(writes=("residual", "normed", "squares"), overlap=True, early=("weight",), shared=RING_BYTES)
def flow_residual(residual, normed, squares, x, weight, gain, parts, num_tokens):
    """residual[t] += x[t] @ weight.T for the live tokens; normed = residual * gain, and squares, of the new residual.

    Args:
        residual: float32 [T, N], updated in place.
        normed: [T, N], any storage type.
        squares: float32 [T, ceil(N / 8)]: sums of squares of columns 8 j .. 8 j + 7.
        x: [T, K], of the weights' type.
        weight: [N, K], as in `flow_project`.
        gain: float32 [N], of the norm behind.
        parts, num_tokens: as in `flow_project`.

    Launch: as `flow_project`. A block owns its tiles of what it writes. Barriers are reached by all its threads. Safe under
    capture, and not idempotent. Oracle: oracle_fused.project_residual.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    flow_add(ring, partial, residual, normed, squares, x, weight, gain, parts, num_tokens, None, i32(0))


@kernel(writes=("residual", "normed", "squares", "features"), overlap=True, early=("weight",), shared=RING_BYTES)
def flow_residual_tap(residual, normed, squares, features, x, weight, gain, column, parts, num_tokens):
    """`flow_residual`, and features[t, column : column + N] = the new residual.

    Args:
        features: [T, F], any storage type.
        column: int32, first column of the tap.
        residual, normed, squares, x, weight, gain, parts, num_tokens: as in `flow_residual`.

    Launch, ownership and barriers as there. Safe under capture, and not idempotent. Oracle: oracle_fused.project_residual_tap.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    flow_add(ring, partial, residual, normed, squares, x, weight, gain, parts, num_tokens, features, column)
