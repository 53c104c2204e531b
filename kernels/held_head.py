"""A head of short rows with the greedy sampler behind it (kernels/held.py): logits with each stripe's best column, as
kernels/head.py has them."""

from __future__ import annotations

from kernels.held import HELD_ROWS, HELD_TILE, HELD_WARPS, OPERAND, held_products, hold_tile, lay_out_rows
from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_barrier, warp_max, warp_size
from kernels.project import warp_of_block, warps_of_block
from kernels.tile import TILE_TOKENS

_PARTIAL = 2 * HELD_WARPS * HELD_TILE

_CELLS = HELD_WARPS * HELD_TILE
"""A best column for each warp, row and place in a tile."""

_NONE = i32(2147483647)


@device_function
def held_rows(operand, partial, value_of, column_of, logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """What the kernel below does, with its shared memory."""
    outputs, height, cells = i32(weight.shape[0]), i32(HELD_ROWS), i32(HELD_TILE)
    stripe, stripes, grid = i32(cuda.blockIdx.x), i32(best_value.shape[0]), i32(cuda.gridDim.x)
    warp, warps = warp_of_block(), min(warps_of_block(), i32(HELD_WARPS))
    busy, step = warp < warps, stripes * warps * height
    first = (warp * stripes + stripe) * height
    held = hold_tile(weight, first if busy else outputs)
    wait_for_launches()
    let_next_launch_start()
    live = i32(num_rows[0])
    while stripe < stripes:
        token = i32(0)
        while token < live:
            rows, row, side, item = min(live - token, i32(TILE_TOKENS)), first, i32(0), lane()
            lay_out_rows(operand, x, token)
            while busy and item < cells:
                value_of[warp * cells + item], column_of[warp * cells + item] = NEG_INF, _NONE
                item += warp_size()
            cuda.syncthreads()
            while busy and row < outputs:
                after = row + step
                if after >= outputs and token + i32(TILE_TOKENS) < live:
                    after = first
                elif after >= outputs and stripe + grid < stripes:
                    after = first + grid * height
                to = (side * i32(HELD_WARPS) + warp) * cells
                held = held_products(operand, partial, to, held, x, token, weight, row, after)
                warp_barrier()
                item = lane()
                while item < rows * height:
                    output, cell = row + (item & i32(HELD_ROWS - 1)), warp * cells + item
                    if output < outputs:
                        total = partial[to + item]
                        logits[token + (item >> i32(4)), output] = total
                        if output < vocab_size and total > value_of[cell]:
                            value_of[cell], column_of[cell] = total, output
                    item += warp_size()
                side = i32(1) - side
                row += step
            cuda.syncthreads()
            t = warp
            while t < rows:
                value, column, which = NEG_INF, _NONE, lane()
                while which < warps * height:
                    cell = (which >> i32(4)) * cells + t * height + (which & i32(HELD_ROWS - 1))
                    if value_of[cell] > value or (value_of[cell] == value and column_of[cell] < column):
                        value, column = value_of[cell], column_of[cell]
                    which += warp_size()
                largest = warp_max(value)
                lowest = i32(-warp_max(i32(-column) if value == largest else i32(-_NONE)))
                if lane() == i32(0):
                    best_value[stripe, token + t], best_column[stripe, token + t] = largest, lowest
                t += warps_of_block()
            cuda.syncthreads()
            token += i32(TILE_TOKENS)
        stripe += grid
        first += grid * height


@kernel(writes=("logits", "best_value", "best_column"), overlap=True, early=("weight",))
def held_argmax(logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column.

    Stripe s of S holds every S-th tile of HELD_ROWS columns of the logits, and its warps take turns at them. Columns from
    vocab_size on (padding) and NaN are never best; a stripe without a candidate says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: K == HELD_COLUMNS (kernels/held.py).
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: up to HELD_WARPS warps, any grid, S blocks at best, one on each multiprocessor. A block owns its stripes. Barriers are
    reached by all its threads. Safe under capture. Oracle: oracle_fused.project_argmax.
    """
    operand = cuda.shared.array(OPERAND, f32)
    partial = cuda.shared.array(_PARTIAL, f32)
    value_of = cuda.shared.array(_CELLS, f32)
    column_of = cuda.shared.array(_CELLS, i32)
    held_rows(operand, partial, value_of, column_of, logits, best_value, best_column, x, weight, vocab_size, num_rows)
