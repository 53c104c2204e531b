"""Projections of a decode or verify step, each one kernel with what stands before and behind it: norm, residual, SwiGLU.

A decode step of a small model is bound by the number of its kernels, that of a large one by the bytes of its weights. So the
norm is taken into the product: whoever last changed the residual leaves `normed` = residual * gain, in the type of the weights,
and `squares`, the sums of squares of each 8 columns; the product runs over `normed`, and the scale 1 / rms is applied to its
result, which is the same by linearity (Zhang and Sennrich, 2019, for the norm; Shazeer, 2020, for SwiGLU).

Launch, for all of them: blocks of a few warps, `parts` of them to a tile of 8 or 16 outputs (kernels/tile.py), and any grid:
tiles take turns. How many warps share a tile is fixed by the shape alone, never by the batch: their sums meet in shared memory, in
order. Weights are read once for each 8 rows of activations, and the first of them are under way before the launch before has ended.
What is read behind that does not wait for the number of live rows. Loops whose stride is known at run time alone are while loops:
Numba's range would divide in 64 bits, a hundred cycles in kernels of four thousand.
"""

from __future__ import annotations

import math

from kernels.exponential import exp
from kernels.lang import SIMULATED, cuda, device_function, f32, i32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, octet_lane, octet_size, octet_sum, primitive, warp_size, warp_sum
from kernels.tile import (
    MAX_WARPS,
    PARTIAL,
    RING,
    TILE,
    TILE_ROWS,
    TILE_TOKENS,
    begin_products,
    begin_rows,
    finish_products,
)

if not SIMULATED:
    import kernels.tile_gpu as tile_gpu

_REGISTERS = 96  # four blocks of five warps on a multiprocessor

_MAX_WARPS_ONE, _MAX_WARPS_TWO = MAX_WARPS[1:]


@device_function
def divide(a, b):
    """a // b of positive int32 in 32 bits: Numba would divide in 64, which is a call on a GPU."""
    return i32(u32(a) // u32(b))


@device_function
def ceil_div(a, b):
    """Positive int32, rounded up."""
    return divide(i32(a + b - i32(1)), b)


@device_function
def warp_of_block():
    """Place of this warp in its block."""
    return divide(i32(cuda.threadIdx.x), warp_size())


@device_function
def warps_of_block():
    return max(divide(i32(cuda.blockDim.x), warp_size()), i32(1))


@device_function
def multiplying_warps(spare, slabs):
    """Warps of this block that may multiply; `spare` of them do something else, but a single warp does everything."""
    most = i32(_MAX_WARPS_ONE) if slabs == i32(1) else i32(_MAX_WARPS_TWO)
    return min(max(i32(warps_of_block() - spare), i32(1)), most)


@device_function
def place_of_warp(warps, parts):
    """(this warp, warps that share a tile, the tile that it is of, tiles that a block has at once, does it multiply, its part)."""
    warp, parts = warp_of_block(), min(parts, warps)
    tile, tiles = divide(warp, parts), divide(warps, parts)
    return warp, parts, tile, tiles, tile < tiles, i32(warp - tile * parts)


@device_function
def put_sum(residual, normed, features, column, row, output, value, factor):
    """A sum to the residual, times the gain of the norm behind to `normed`, and to a drafter's features, where there are any."""
    residual[u32(row), u32(output)] = value
    normed[u32(row), u32(output)] = narrow(value * factor, normed)
    if features is not None:
        features[u32(row), u32(column + output)] = narrow(value, features)


@device_function
def total_of(partial, warp, parts, slabs, slab, place):
    """Sum of one element of a slab over the parts of a tile, in order; `warp` is the first of them. Four are read at once."""
    step, at = i32(slabs * i32(TILE)), i32((warp * slabs + slab) * i32(TILE) + place)
    total, part, nothing = partial[u32(at)], i32(1), f32(0.0)
    while part < parts:
        a, b = partial[u32(at + step)], partial[u32(at + i32(2) * step)] if i32(part + i32(1)) < parts else nothing
        c = partial[u32(at + i32(3) * step)] if i32(part + i32(2)) < parts else nothing
        d = partial[u32(at + i32(4) * step)] if i32(part + i32(3)) < parts else nothing
        total = total + a + b + c + d
        at = i32(at + i32(4) * step)
        part = i32(part + i32(4))
    return total


@primitive(lambda *types: None if SIMULATED else tile_gpu.scales_of_rows)
def scales_of_rows(scale, squares, token, width, eps):
    """scale[t] = 1 / rms of row token + t of the residual, from its sums of squares. Called by a whole warp.

    Args:
        scale: float32 shared [TILE_TOKENS].
        squares: float32 [T, ceil(H / 8)].
        token: int32, first row, below T.
        width: int32, H.
        eps: float32.
    """
    for t in range(min(i32(TILE_TOKENS), i32(squares.shape[0]) - token)):
        total = f32(0.0)
        for i in range(lane(), squares.shape[1], warp_size()):
            total += squares[token + t, i]
        total = warp_sum(total)
        if lane() == 0:
            scale[t] = f32(1.0) / f32(math.sqrt(total / f32(width) + eps))


@device_function
def norm_scales(scale, squares, token, width, eps, scaled):
    """`scales_of_rows` by the last warp of the block; 1 for rows that were normalised before."""
    if warp_of_block() == warps_of_block() - i32(1):
        if scaled == i32(0):
            scales_of_rows(scale, squares, token, width, eps)
        else:
            for t in range(lane(), TILE_TOKENS, warp_size()):
                scale[t] = f32(1.0)


@device_function
def project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, slabs, gated, num_tokens):
    """What the three kernels below do, and those of kernels/project_small.py. gated 1: the second slab is of the weight rows that
    lie half of all further on, and out = silu(first) * second; else it is of the next eight."""
    outputs, width, height = i32(i32(weight.shape[0]) >> gated), i32(weight.shape[1]), i32((slabs >> gated) * i32(TILE_ROWS))
    second = outputs if gated > i32(0) else i32(TILE_ROWS)
    warp, parts, group, tiles, multiplies, part = place_of_warp(multiplying_warps(i32(1), slabs), parts)
    base, step = i32(i32(cuda.blockIdx.x) * tiles * height), i32(i32(cuda.gridDim.x) * tiles * height)
    row = i32(base + group * height)
    if multiplies and row < outputs:
        begin_products(ring, weight, row, i32(row + second), part, parts, warp, slabs, i32(0))
    wait_for_launches()
    let_next_launch_start()
    if multiplies and row < outputs:
        begin_rows(ring, x, i32(0), part, parts, warp, slabs)
    norm_scales(scale, squares, i32(0), width, eps, scaled)
    live, halving = i32(num_tokens[0]), i32((slabs >> gated) - i32(1))
    while base < outputs:
        token = i32(0)
        while token < live:
            after = i32(token + i32(TILE_TOKENS)) if i32(token + i32(TILE_TOKENS)) < live else i32(0)
            if multiplies and row < outputs:
                finish_products(ring, partial, x, token, weight, row, i32(row + second), part, parts, warp, slabs, i32(0))
                next_row = row if after > i32(0) else i32(row + step)
                if next_row < outputs:
                    begin_products(ring, weight, next_row, i32(next_row + second), part, parts, warp, slabs, i32(0))
                    begin_rows(ring, x, after, part, parts, warp, slabs)
            cuda.syncthreads()
            item, rows = divide(part * warp_size() + lane(), octet_size()), min(i32(live - token), i32(TILE_TOKENS))
            while multiplies and item < i32(rows << halving):
                t, slab = i32(item >> halving), i32(item & halving)
                n = octet_lane()
                while n < i32(TILE_ROWS):
                    output, place = i32(row + slab * i32(TILE_ROWS) + n), i32(t * i32(TILE_ROWS) + n)
                    if output < outputs:
                        total = total_of(partial, warp - part, parts, slabs, slab, place) * scale[u32(t)]
                        if gated > i32(0):
                            up = total_of(partial, warp - part, parts, slabs, i32(1), place) * scale[u32(t)]
                            total = total / (f32(1.0) + exp(-total)) * up
                        out[u32(token + t), u32(output)] = narrow(total, out)
                    n = i32(n + octet_size())
                item = i32(item + divide(parts * warp_size(), octet_size()))
            cuda.syncthreads()
            if after != token:
                norm_scales(scale, squares, after, width, eps, scaled)
            token = i32(token + i32(TILE_TOKENS))
        base = i32(base + step)
        row = i32(row + step)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",))
def norm_project(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = x[t] @ weight.T / rms[t] for the live tokens, with rms from the sums of squares; scaled 1: not divided by it.

    Args:
        out: [T, N], any storage type.
        x: [T, K], of the weights' type: residual * gain, or with scaled = 1 the norm itself.
        squares: float32 [T, ceil(K / 8)], of the residual.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        eps: float32.
        scaled: int32, 0 or 1.
        parts: int32, warps that share a tile.
        num_tokens: int32 [1], live rows.

    Launch: (parts * tiles a block + 1) warps, of which the last sums the squares. A block owns its tiles of `out`. Barriers are
    reached by all its threads. Safe under capture. Oracle: oracle_fused.norm_project.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(1), i32(0), num_tokens)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",))
def norm_project_two(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """`norm_project` in tiles of 16 outputs, for large weights. Launch, ownership and barriers are the same. Safe under capture.
    Oracle: oracle_fused.norm_project.

    Args:
        out, x, squares, weight, eps, scaled, parts, num_tokens: as in `norm_project`.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(2), i32(0), num_tokens)


@kernel(writes=("out",), max_registers=_REGISTERS, overlap=True, early=("weight",))
def norm_gate_up(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T / rms[t], for the live tokens.

    Args:
        out: [T, I], any storage type.
        x, squares, eps, scaled, parts, num_tokens: as in `norm_project`.
        weight: [2 I, K], gate first.

    Launch and ownership as in `norm_project`; a tile is 8 outputs, a slab of gate rows and one of up rows.
    Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    project_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, i32(2), i32(1), num_tokens)


@device_function
def add_rows(ring, partial, residual, normed, squares, x, weight, gain, parts, slabs, num_tokens, features, column):
    """What the two kernels below do, and with `features` those of kernels/project_tap.py."""
    outputs, height = i32(weight.shape[0]), i32(slabs * i32(TILE_ROWS))
    warp, parts, group, tiles, multiplies, part = place_of_warp(multiplying_warps(i32(0), slabs), parts)
    base, step = i32(i32(cuda.blockIdx.x) * tiles * height), i32(i32(cuda.gridDim.x) * tiles * height)
    row = i32(base + group * height)
    octet = divide(part * warp_size() + lane(), octet_size())
    halving = i32(slabs - i32(1))
    once = halving  # tiles of 16 are those of large weights: L2 holds none of them until the next step
    own_t, own_output = i32(octet >> halving), i32(row + (octet & halving) * i32(TILE_ROWS) + octet_lane())
    if multiplies and row < outputs:
        begin_products(ring, weight, row, i32(row + i32(TILE_ROWS)), part, parts, warp, slabs, once)
    factor = f32(0.0)
    if multiplies and own_output < outputs:
        factor = gain[u32(own_output)]
    wait_for_launches()
    let_next_launch_start()
    if multiplies and row < outputs:
        begin_rows(ring, x, i32(0), part, parts, warp, slabs)
    before = f32(0.0)  # asked for now, so that nobody waits for it behind the product
    if multiplies and own_output < outputs and own_t < i32(residual.shape[0]):
        before = residual[u32(own_t), u32(own_output)]
    live = i32(num_tokens[0])
    while base < outputs:
        token = i32(0)
        while token < live:
            after = i32(token + i32(TILE_TOKENS)) if i32(token + i32(TILE_TOKENS)) < live else i32(0)
            if multiplies and row < outputs:
                second = i32(row + i32(TILE_ROWS))
                finish_products(ring, partial, x, token, weight, row, second, part, parts, warp, slabs, once)
                next_row = row if after > i32(0) else i32(row + step)
                if next_row < outputs:
                    begin_products(ring, weight, next_row, i32(next_row + i32(TILE_ROWS)), part, parts, warp, slabs, once)
                    begin_rows(ring, x, after, part, parts, warp, slabs)
            cuda.syncthreads()
            rows, item = min(i32(live - token), i32(TILE_TOKENS)), octet
            while multiplies and i32(item & i32(-4)) < i32(rows * slabs):  # whole warps: octet_sum wants all lanes
                t, slab = i32(item >> halving), i32(item & halving)
                total, n = f32(0.0), octet_lane()
                while n < i32(TILE_ROWS):
                    output = i32(row + slab * i32(TILE_ROWS) + n)
                    if t < rows and output < outputs:
                        own = item == octet and n == octet_lane()
                        value = before if own else residual[u32(token + t), u32(output)]
                        value += total_of(partial, warp - part, parts, slabs, slab, i32(t * i32(TILE_ROWS) + n))
                        gained = factor if own else gain[u32(output)]
                        put_sum(residual, normed, features, column, i32(token + t), output, value, gained)
                        total += value * value
                    n = i32(n + octet_size())
                total = octet_sum(total)
                first = i32(row + slab * i32(TILE_ROWS))
                if octet_lane() == 0 and t < rows and first < outputs:
                    squares[u32(token + t), u32(divide(first, i32(TILE_ROWS)))] = total
                item = i32(item + divide(parts * warp_size(), octet_size()))
            cuda.syncthreads()
            token = i32(token + i32(TILE_TOKENS))
            next_output = own_output if after > i32(0) else i32(own_output + step)
            if multiplies and next_output < outputs and i32(after + own_t) < i32(residual.shape[0]):
                before, factor = residual[u32(after + own_t), u32(next_output)], gain[u32(next_output)]
        base = i32(base + step)
        row = i32(row + step)
        own_output = i32(own_output + step)


@kernel(writes=("residual", "normed", "squares"), max_registers=_REGISTERS, overlap=True, early=("weight", "gain"))
def project_residual(residual, normed, squares, x, weight, gain, parts, num_tokens):
    """residual[t] += x[t] @ weight.T for the live tokens; normed = residual * gain, and squares, of the new residual.

    Args:
        residual: float32 [T, N], updated in place.
        normed: [T, N], any storage type.
        squares: float32 [T, ceil(N / 8)]: sums of squares of columns 8 j .. 8 j + 7.
        x: [T, K], of the weights' type.
        weight: [N, K], any storage type; 16-bit on a GPU: K a multiple of 8.
        gain: float32 [N], of the norm behind.
        parts, num_tokens: as in `norm_project`.

    Launch: parts * tiles a block warps. A block owns its tiles of what it writes. Barriers are reached by all its threads. Safe
    under capture, and not idempotent. Oracle: oracle_fused.project_residual.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    add_rows(ring, partial, residual, normed, squares, x, weight, gain, parts, i32(1), num_tokens, None, i32(0))


@kernel(writes=("residual", "normed", "squares"), max_registers=_REGISTERS, overlap=True, early=("weight", "gain"))
def project_residual_two(residual, normed, squares, x, weight, gain, parts, num_tokens):
    """`project_residual` in tiles of 16 outputs, for large weights. Launch, ownership and barriers are the same. Safe under
    capture, and not idempotent. Oracle: oracle_fused.project_residual.

    Args:
        residual, normed, squares, x, weight, gain, parts, num_tokens: as in `project_residual`.
    """
    ring = cuda.shared.array(RING, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    add_rows(ring, partial, residual, normed, squares, x, weight, gain, parts, i32(2), num_tokens, None, i32(0))
