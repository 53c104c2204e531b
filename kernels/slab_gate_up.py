"""Gate and up of a decode step with SwiGLU behind them, by slabs of four rows of gate and as many of up (kernels/slab.py): another
form of `flow_gate_up` of kernels/flow_project.py, faster on some GPUs of one name and slower on others."""

from __future__ import annotations

from kernels.behind_product import gated
from kernels.flow import PARTIAL, WARPS, flow_operand, lines_of
from kernels.flow_project import flow_total, scales
from kernels.lang import cuda, device_function, f32, i32, kernel, u32
from kernels.lang_overlap import early_count, let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow
from kernels.lang_warp import lane, warp_size
from kernels.project import place_of_warp, warps_of_block
from kernels.slab import HALF, SLAB_RING_BYTES, ask_pair, fill_pairs, open_slabs, slab_products, stages_of
from kernels.tile import TILE, TILE_ROWS, TILE_TOKENS


@device_function
def gate_up_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, num_tokens):
    """What the kernel below does, with its shared memory. The last warp of a tile asks: the first ones have more to add up."""
    outputs, width, height = i32(i32(weight.shape[0]) >> i32(1)), i32(weight.shape[1]), i32(HALF)
    warp, parts, group, tiles, flows, part = place_of_warp(min(warps_of_block(), i32(WARPS)), parts)
    line, lines = lines_of(width, part, parts)
    stages, slot, parity, asks = stages_of(width, tiles), i32(0), u32(0), i32(parts - i32(1) - part)
    base, step = i32(i32(cuda.blockIdx.x) * tiles * height), i32(i32(cuda.gridDim.x) * tiles * height)
    first, next_row = i32(base + group * height), outputs
    live, token = early_count(num_tokens), i32(0)
    if flows:
        open_slabs(ring, group, asks, stages)
        next_row = fill_pairs(ring, weight, first, outputs, step, outputs, asks, group, stages, slot)
    cuda.syncthreads()
    wait_for_launches()
    let_next_launch_start()
    while token < max(live, i32(1)):  # at least once: what was asked for must have come before the block ends
        if token > i32(0) and flows:
            next_row = fill_pairs(ring, weight, first, outputs, step, outputs, asks, group, stages, slot)
        held = flow_operand(x, token, line)
        scales(scale, squares, token, width, eps, scaled)
        at, row, side, rows = base, first, i32(0), i32(min(i32(live - token), i32(TILE_TOKENS)))
        while at < outputs:
            if flows and row < outputs:
                to = i32((side * i32(WARPS) + warp) * i32(2 * TILE))
                slab_products(ring, partial, to, held, x, token, weight, row, outputs, line, lines, group, stages, slot, parity)
            cuda.syncthreads()
            if flows and row < outputs:
                if next_row < outputs:
                    ask_pair(ring, weight, next_row, outputs, asks, group, stages, slot)
                next_row = i32(next_row + step)
                slot = i32(slot + i32(1))
                if slot == stages:
                    slot, parity = i32(0), u32(u32(1) - parity)
            item, own = i32(part * warp_size() + lane()), i32((side * i32(WARPS) + warp - part) * i32(2 * TILE))
            while flows and item < i32(rows * height):
                n, t = i32(item & i32(HALF - 1)), i32(u32(item) // u32(HALF))
                output, place = i32(row + n), i32(t * i32(TILE_ROWS) + n)
                if output < outputs:
                    gate = flow_total(partial, own, parts, place)
                    up = flow_total(partial, own, parts, i32(place + height))
                    out[token + t, output] = narrow(gated(gate, up, scale[t]), out)
                item = i32(item + parts * warp_size())
            side = i32(i32(1) - side)
            at = i32(at + step)
            row = i32(row + step)
        cuda.syncthreads()
        token = i32(token + i32(TILE_TOKENS))


@kernel(writes=("out",), overlap=True, early=("weight", "num_tokens"), shared=SLAB_RING_BYTES)
def slab_gate_up(out, x, squares, weight, eps, scaled, parts, num_tokens):
    """out[t] = silu(gate) * up, with (gate, up) = x[t] @ weight.T / rms[t], for the live tokens.

    Args:
        out: [T, I], any storage type.
        x, squares, eps, scaled, num_tokens: as in `flow_project`.
        weight: [2 I, K], gate first, otherwise as there.
        parts: int32, warps that share a tile of four outputs.

    Launch: up to WARPS warps, a multiple of `parts`; any grid, at best a block on each multiprocessor. A block owns its tiles of
    `out`. Barriers are reached by all its threads. Safe under capture. Oracle: oracle_fused.norm_gate_up.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    scale = cuda.shared.array(TILE_TOKENS, f32)
    gate_up_rows(ring, partial, scale, out, x, squares, weight, eps, scaled, parts, num_tokens)
