"""A large head with the greedy sampler behind it (kernels/slab.py): logits with each stripe's best column, as kernels/head.py has
them."""

from __future__ import annotations

from kernels.flow import PARTIAL, WARPS, flow_operand, lines_of
from kernels.flow_project import flow_total
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_size
from kernels.project import divide, warp_of_block, warps_of_block
from kernels.slab import HALF, SLAB_RING_BYTES, ask_slab, fill_slabs, open_slabs, slab_products, stages_of
from kernels.tile import TILE, TILE_ROWS, TILE_TOKENS

_CELLS = WARPS * TILE
"""A best column for each tile that a block has at once, row, slab and place in it."""

_NONE = i32(2147483647)


@device_function
def head_rows(ring, partial, value_of, column_of, logits, best_value, best_column, x, weight, vocab_size, parts, num_rows):
    """What the kernel below does, with its shared memory."""
    outputs, width = i32(weight.shape[0]), i32(weight.shape[1])
    stripe, stripes, grid = i32(cuda.blockIdx.x), i32(best_value.shape[0]), i32(cuda.gridDim.x)
    warp, warps = warp_of_block(), min(warps_of_block(), i32(WARPS))
    parts = min(parts, warps)
    group, tiles = divide(warp, parts), divide(warps, parts)
    flows, part = group < tiles, warp - group * parts
    line, lines = lines_of(width, part, parts)
    stages, slot, parity = stages_of(width, tiles), i32(0), u32(0)
    base, step = stripe * tiles * i32(TILE_ROWS), stripes * tiles * i32(TILE_ROWS)
    first, next_row = base + group * i32(TILE_ROWS), outputs
    if flows:
        open_slabs(ring, group, part, stages)
    cuda.syncthreads()
    if flows:
        next_row = fill_slabs(ring, weight, first, step, outputs, part, parts, group, stages, slot)
    wait_for_launches()
    let_next_launch_start()
    live, token = i32(num_rows[0]), i32(0)
    while stripe < stripes:
        while token < max(live, i32(1)):  # at least once: what was asked for must have come before the block ends
            if (token > i32(0) or stripe >= grid) and flows:
                next_row = fill_slabs(ring, weight, first, step, outputs, part, parts, group, stages, slot)
            held = flow_operand(x, token, line)
            item, rows = part * warp_size() + lane(), min(live - token, i32(TILE_TOKENS))
            while flows and item < i32(TILE):
                value_of[group * i32(TILE) + item], column_of[group * i32(TILE) + item] = NEG_INF, _NONE
                item += parts * warp_size()
            at, row, side = base, first, i32(0)
            while at < outputs:
                if flows and row < outputs:
                    to = (side * i32(WARPS) + warp) * i32(2 * TILE)
                    slab_products(
                        ring, partial, to, held, x, token, weight, row, i32(HALF), line, lines, group, stages, slot, parity
                    )
                cuda.syncthreads()
                if flows and row < outputs:
                    if next_row < outputs:
                        ask_slab(ring, weight, next_row, part, parts, group, stages, slot)
                    next_row += step
                    slot += i32(1)
                    if slot == stages:
                        slot, parity = i32(0), u32(u32(1) - parity)
                item, own = part * warp_size() + lane(), (side * i32(WARPS) + warp - part) * i32(2 * TILE)
                while flows and item < rows * i32(TILE_ROWS):
                    output, cell = row + (item & i32(TILE_ROWS - 1)), group * i32(TILE) + item
                    if output < outputs:
                        total = flow_total(partial, own, parts, item)
                        logits[token + (item >> i32(3)), output] = total
                        if output < vocab_size and total > value_of[cell]:
                            value_of[cell], column_of[cell] = total, output
                    item += parts * warp_size()
                side = i32(1) - side
                at += step
                row += step
            cuda.syncthreads()
            t = i32(cuda.threadIdx.x)
            while t < rows:
                value, column = NEG_INF, _NONE
                for which in range(tiles * i32(TILE_ROWS)):
                    cell = (i32(which) >> i32(3)) * i32(TILE) + t * i32(TILE_ROWS) + (i32(which) & i32(TILE_ROWS - 1))
                    if value_of[cell] > value or (value_of[cell] == value and column_of[cell] < column):
                        value, column = value_of[cell], column_of[cell]
                best_value[stripe, token + t], best_column[stripe, token + t] = value, column
                t += i32(cuda.blockDim.x)
            cuda.syncthreads()
            token += i32(TILE_TOKENS)
        stripe += grid
        base += grid * tiles * i32(TILE_ROWS)
        first += grid * tiles * i32(TILE_ROWS)
        token = i32(0)


@kernel(writes=("logits", "best_value", "best_column"), overlap=True, early=("weight",), shared=SLAB_RING_BYTES)
def flow_argmax(logits, best_value, best_column, x, weight, vocab_size, parts, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column.

    Stripe s of S holds every S-th group of tiles, as many as a block has at once. Columns from vocab_size on (padding) and NaN are
    never best; a stripe without a candidate says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: as in `flow_project`.
        vocab_size: int32.
        parts: int32, warps that share a tile of 16 columns of the logits.
        num_rows: int32 [1], live rows.

    Launch: up to WARPS warps, a multiple of `parts`; S blocks. A block owns its stripe. Barriers are reached by all its
    threads. Safe under capture. Oracle: oracle_fused.project_argmax.
    """
    ring = cuda.shared.array(0, f32)
    partial = cuda.shared.array(PARTIAL, f32)
    value_of = cuda.shared.array(_CELLS, f32)
    column_of = cuda.shared.array(_CELLS, i32)
    head_rows(ring, partial, value_of, column_of, logits, best_value, best_column, x, weight, vocab_size, parts, num_rows)
