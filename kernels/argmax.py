"""Argmax over the vocabulary, the greedy sampler."""

from __future__ import annotations

from kernels.block_reduce import block_best
from kernels.lang import MAX_THREADS, NEG_INF, bits_of_float, block_max, cuda, device_function, f32, float_of_bits, i32, kernel, u64
from kernels.lang_eight import read_eight
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_storage import widen

_TILE = 512
"""Columns that a thread looks at before it asks whether its best has moved."""

NO_TOKEN = i32(-1)
"""The token of a row with nothing above -inf: all NaN, all -inf, or some of each. The end of a step reports it, and puts id 0 in
its place (kernels/publish.py)."""

_LOWEST = i32(-2147483648)
_NONE = i32(2147483647)
_INFINITY_BITS = i32(0x7F800000)


@device_function
def float_order(value):
    """An integer that orders as the float does, NaN lowest and -0 equal to 0: LLVM vectorises an integer maximum, but no
    floating-point one that may meet a NaN."""
    bits = bits_of_float(value)
    order = bits
    if bits < i32(0):
        order = i32(_LOWEST - bits)
    if bits > _INFINITY_BITS:
        order = _LOWEST
    return order


@device_function
def float_of_order(order):
    """The float of a float_order; -inf for that of NaN."""
    bits = i32(order)
    if order < i32(0):
        bits = i32(_LOWEST - order)
    value = float_of_bits(bits)
    if order == _LOWEST:
        value = NEG_INF
    return value


@kernel(writes=("out",), overlap=True)
def argmax(out, logits, vocab_size, num_rows):
    """out[j] = column of the largest of logits[j, :vocab_size] for the live rows; the lowest column wins a tie.

    NaN never wins, +inf does, columns from vocab_size on (padding of the head) are not looked at, and a row with nothing above -inf
    yields NO_TOKEN.

    Args:
        out: int32 [J].
        logits: [J, V'], any storage type, V' >= vocab_size.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Launch: a block a row, threads over the columns. A thread finds the first tile (of its share of the columns) that holds its
    maximum, then the first such column in that tile; the block takes the lowest column of those that hold the block's maximum.
    Block `j` owns out[j]; barriers are reached by all its threads. Safe under capture. Oracle: oracle_forward.argmax.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    winner = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    tile = _TILE * cuda.blockDim.x
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        best = i32(_LOWEST)
        best_start = 0
        for start in range(0, vocab_size, tile):
            tile_best = i32(_LOWEST)
            for i in range(start + cuda.threadIdx.x, min(start + tile, vocab_size), cuda.blockDim.x):
                tile_best = max(tile_best, float_order(widen(logits[row, u64(i)])))
            if tile_best > best:
                best = tile_best
                best_start = start
        value = NEG_INF
        column = vocab_size
        for i in range(best_start + cuda.threadIdx.x, min(best_start + tile, vocab_size), cuda.blockDim.x):
            if widen(logits[row, i]) > value:
                value = widen(logits[row, i])
                column = i
        largest = block_max(value, scratch)
        if cuda.threadIdx.x == 0:
            winner[0] = vocab_size
        cuda.syncthreads()
        if value == largest:
            cuda.atomic.min(winner, 0, column)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[row] = winner[0] if winner[0] < vocab_size else NO_TOKEN
        cuda.syncthreads()


@device_function
def stripe_width(vocab_size, stripes):
    """Columns of a stripe."""
    share = i32((vocab_size + stripes - i32(1)) // stripes)
    return (share + i32(7)) & i32(-8)


@device_function
def better(value, column, other, at, end):
    """(value, column), or (other, at) where that is larger and no padding."""
    if other > value and at < end:
        value, column = other, at
    return value, column


@device_function
def best_with_eight(value, column, v, i, end):
    """`better` of eight neighbours from column i on, the lowest first."""
    value, column = better(value, column, v[0], i, end)
    value, column = better(value, column, v[1], i32(i + i32(1)), end)
    value, column = better(value, column, v[2], i32(i + i32(2)), end)
    value, column = better(value, column, v[3], i32(i + i32(3)), end)
    value, column = better(value, column, v[4], i32(i + i32(4)), end)
    value, column = better(value, column, v[5], i32(i + i32(5)), end)
    value, column = better(value, column, v[6], i32(i + i32(6)), end)
    return better(value, column, v[7], i32(i + i32(7)), end)


@kernel(writes=("best_value", "best_column"), overlap=True)
def stripe_argmax(best_value, best_column, logits, vocab_size, num_rows):
    """best_value[s, j], best_column[s, j] = the largest of logits[j] in stripe s and its lowest column; best_of_stripes in
    kernels/head.py takes the best of them. NaN and columns from vocab_size on are never best; a stripe without a candidate says
    -inf.

    Args:
        best_value: float32 [S, J].
        best_column: int32 [S, J].
        logits: [J, V'], any storage type, V' >= vocab_size.
        vocab_size: int32.
        num_rows: int32 [1], live rows.

    Stripes are whole eights of columns, and a thread takes eight neighbours at a time.

    Launch: grid (J, S), whole warps, threads over the columns of a stripe: one block for a whole row would leave a GPU idle. A
    block owns its stripes; barriers are reached by all its threads. Safe under capture. Oracle: oracle_forward.stripe_argmax.
    """
    values = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    wait_for_launches()
    let_next_launch_start()
    stripes, whole = i32(best_value.shape[0]), i32(logits.shape[1]) & i32(7) == i32(0)
    width = stripe_width(vocab_size, stripes)
    row, live = i32(cuda.blockIdx.x), i32(num_rows[0])
    while row < live:
        stripe = i32(cuda.blockIdx.y)
        while stripe < stripes:
            value, column = NEG_INF, _NONE
            i, end = stripe * width + i32(cuda.threadIdx.x) * i32(8), min((stripe + i32(1)) * width, vocab_size)
            while i < end:
                if whole:
                    value, column = best_with_eight(value, column, read_eight(logits, row, i), i, end)
                else:
                    for at in range(i, min(i + i32(8), end)):
                        if widen(logits[row, at]) > value:
                            value, column = widen(logits[row, at]), i32(at)
                i += i32(cuda.blockDim.x) * i32(8)
            value, column = block_best(value, column, values, columns)
            if cuda.threadIdx.x == 0:
                best_value[stripe, row], best_column[stripe, row] = value, column
            stripe += i32(cuda.gridDim.y)
        row += i32(cuda.gridDim.x)
