"""Token embedding into the residual stream, with what the norm behind it reads."""

from __future__ import annotations

from kernels.behind_product import EIGHT, multiplied, sum_of_eight
from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_eight import read_eight, read_eight_flat, write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import narrow, widen


@device_function
def eight_zeros():
    return f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0)


@kernel(writes=("residual", "normed", "squares"), overlap=True)
def embed_squares(residual, normed, squares, table, gain, input_ids, num_tokens):
    """residual[t] = table[input_ids[t]], zeros for an id outside [0, V); and what the norm behind it reads.

    Args:
        residual: float32 [T, H].
        normed: [T, H], any storage type: residual * gain.
        squares: float32 [T, ceil(H / 8)]: sums of squares of columns 8 j .. 8 j + 7.
        table: [V, H], any storage type.
        gain: float32 [H], of the norm behind.
        input_ids: int32 [T].
        num_tokens: int32 [1], live rows.

    Launch: grid (tokens, n) for any n, threads over eight columns each, which belong to that thread. No barrier; safe under
    capture. Oracle: oracle_fused.embed_squares.
    """
    wait_for_launches()
    let_next_launch_start()
    columns, tiles, live = i32(table.shape[1]), i32(squares.shape[1]), i32(num_tokens[0])
    threads = i32(cuda.gridDim.y) * i32(cuda.blockDim.x)
    row = i32(cuda.blockIdx.x)
    while row < live:
        token = input_ids[row]
        known = token >= 0 and token < table.shape[0]
        tile = i32(cuda.blockIdx.y) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
        while tile < tiles:
            i = tile * i32(EIGHT)
            if columns & i32(7) == i32(0):
                values = eight_zeros()
                if known:
                    values = read_eight(table, token, i)
                write_eight(residual, row, i, values)
                write_eight(normed, row, i, multiplied(values, read_eight_flat(gain, i)))
                squares[row, tile] = sum_of_eight(multiplied(values, values))
            else:
                total = f32(0.0)
                while i < min((tile + i32(1)) * i32(EIGHT), columns):
                    value = f32(0.0)
                    if known:
                        value = widen(table[token, i])
                    residual[row, i] = value
                    normed[row, i] = narrow(value * gain[i], normed)
                    total += value * value
                    i += i32(1)
                squares[row, tile] = total
            tile += threads
        row += i32(cuda.gridDim.x)
