"""The head with the greedy sampler behind it for many rows (kernels/wide_tile.py): logits with each stripe's best column, as
kernels/head.py has them."""

from __future__ import annotations

from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel
from kernels.lang_eight import write_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.project import divide
from kernels.wide_project import HIGH
from kernels.wide_tile import RING_BYTES, WIDE_TOKENS, begin_wide, multiply_wide, wide_sums

_REGISTERS = 112  # as kernels/wide_project.py

_EIGHTS = HIGH // 8

_CELLS = WIDE_TOKENS * _EIGHTS
"""A best column for each token and eight columns of a tile."""

_NONE = i32(2147483647)


@device_function
def better(best, value, column, vocab_size):
    """(value, column) so far, or of one more column where that is larger: padding and NaN never are."""
    if column < vocab_size and value > best[0]:
        return value, column
    return best


@device_function
def best_of_eight(v, column, vocab_size):
    """(largest, lowest column that holds it)."""
    best = better((NEG_INF, _NONE), v[0], column, vocab_size)
    best = better(best, v[1], column + i32(1), vocab_size)
    best = better(best, v[2], column + i32(2), vocab_size)
    best = better(best, v[3], column + i32(3), vocab_size)
    best = better(best, v[4], column + i32(4), vocab_size)
    best = better(best, v[5], column + i32(5), vocab_size)
    best = better(best, v[6], column + i32(6), vocab_size)
    return better(best, v[7], column + i32(7), vocab_size)


@kernel(
    writes=("logits", "best_value", "best_column"), max_registers=_REGISTERS, overlap=True, early=("weight",), shared=RING_BYTES
)
def wide_argmax(logits, best_value, best_column, x, weight, vocab_size, num_rows):
    """logits[j] = x[j] @ weight.T; best_value[s, j], best_column[s, j] = the largest logit of stripe s and its lowest column.

    Stripe s of S holds every S-th tile. Columns from vocab_size on (padding) and NaN are never best; a stripe without a candidate
    says -inf.

    Args:
        logits: float32 [J, V'], V' >= vocab_size, a multiple of 8.
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        x: [J, K], of the weights' type.
        weight: [V', K], any storage type; 16-bit on a GPU: K a multiple of 8.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: eight whole warps on a GPU, any grid, S blocks at best; no clusters. A block owns its stripes. Barriers are reached by
    all its threads. Idempotent; safe under capture. Oracle: oracle_fused.project_argmax.
    """
    ring = cuda.shared.array(0, f32)
    value_of = cuda.shared.array(_CELLS, f32)
    column_of = cuda.shared.array(_CELLS, i32)
    held_value = cuda.shared.array(WIDE_TOKENS, f32)
    held_column = cuda.shared.array(WIDE_TOKENS, i32)
    outputs, half, threads = i32(weight.shape[0]), i32(HIGH // 2), i32(cuda.blockDim.x)
    stripe, stripes = i32(cuda.blockIdx.x), i32(best_value.shape[0])
    begun = stripe * i32(HIGH) < outputs
    if begun:
        begin_wide(ring, weight, stripe * i32(HIGH), stripe * i32(HIGH) + half, i32(HIGH), i32(0), i32(1))
    wait_for_launches()
    let_next_launch_start()
    live = i32(num_rows[0])
    while stripe < stripes:
        token = i32(0)
        while token < live:
            rows, t = min(live - token, i32(WIDE_TOKENS)), i32(cuda.threadIdx.x)
            while t < rows:  # a thread keeps the best columns of the same rows throughout
                held_value[t], held_column[t] = NEG_INF, _NONE
                t += threads
            base = stripe * i32(HIGH)
            while base < outputs:
                if not begun:
                    begin_wide(ring, weight, base, base + half, i32(HIGH), i32(0), i32(1))
                begun = False
                multiply_wide(ring, x, token, weight, base, base + half, i32(HIGH), i32(0), i32(1))
                cuda.syncthreads()
                item = i32(cuda.threadIdx.x)
                while item < rows * i32(_EIGHTS):
                    t = divide(item, i32(_EIGHTS))
                    place = (item - t * i32(_EIGHTS)) << i32(3)
                    best = NEG_INF, _NONE
                    if base + place < outputs:
                        values = wide_sums(
                            ring, logits, x, weight, token + t, base + place, t, place, i32(HIGH), i32(0), i32(0), i32(1)
                        )
                        write_eight(logits, token + t, base + place, values)
                        best = best_of_eight(values, base + place, vocab_size)
                    value_of[item], column_of[item] = best[0], best[1]
                    item += threads
                cuda.syncthreads()
                t = i32(cuda.threadIdx.x)
                while t < rows:
                    for which in range(_EIGHTS):
                        cell = t * i32(_EIGHTS) + i32(which)
                        if value_of[cell] > held_value[t]:
                            held_value[t], held_column[t] = value_of[cell], column_of[cell]
                    t += threads
                base += stripes * i32(HIGH)
            t = i32(cuda.threadIdx.x)
            while t < rows:
                best_value[stripe, token + t], best_column[stripe, token + t] = held_value[t], held_column[t]
                t += threads
            token += i32(WIDE_TOKENS)
        stripe += i32(cuda.gridDim.x)
