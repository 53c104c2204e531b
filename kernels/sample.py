"""Drawing a token from a row of logits: the column of the largest logit + Gumbel noise, which is a sample of the softmax."""

from __future__ import annotations

from kernels.argmax import NO_TOKEN, float_order
from kernels.block_reduce import block_best, warp_of_grid, warps_of_grid
from kernels.lang import MAX_THREADS, NEG_INF, bits_of_float, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.lang_warp import lane, warp_max, warp_size
from kernels.project import ceil_div
from kernels.random import (
    QUARTER,
    ROLE_TOKEN,
    TILE,
    gumbel,
    gumbel_bound,
    high_words,
    low_words,
    unsigned,
    word_of,
)

NO_COLUMN = i32(2147483647)
"""Column of a stripe or a row in which nothing is above -inf."""

NOTHING = i32(-2139095040)
"""float_order of -inf; only that of NaN, which a bound has where nothing is kept, is lower."""

_LOWEST = i32(-2147483648)


@device_function
def bounded(logit, high, floor):
    """At least logit + gumbel, as an integer that orders as the float does; lowest for NaN and below `floor`."""
    bits = bits_of_float(f32(logit + gumbel_bound(high)))
    order = bits if bits >= i32(0) else i32(_LOWEST - bits)
    return order if logit >= floor else i32(_LOWEST)


@device_function
def kept(logit, floor):
    """The float_order of a logit; lowest for NaN and below `floor`."""
    return float_order(logit) if logit >= floor else i32(_LOWEST)


@device_function
def tile_bound(processed, row, tile, first, step, calls, vocab_size, floor, noisy, position, role, k0, k1):
    """float_order of a bound of the scores of this thread's columns in one tile: cheap, and on a CPU vectorised. calls: how many of
    a whole tile's calls are this thread's."""
    best = i32(_LOWEST)
    start = i32(tile * i32(TILE))
    if start + i32(TILE) > vocab_size:
        n = first
        while n < min(i32(QUARTER), vocab_size - start):
            words = high_words(tile * i32(QUARTER) + n, position, role, k0, k1)
            for which in range(4):
                column = start + n + i32(which) * i32(QUARTER)
                if column < vocab_size:
                    logit = processed[row, u64(column)]
                    best = max(best, bounded(logit, word_of(words, which), floor) if noisy else kept(logit, floor))
            n += step
    elif noisy:
        for nth in range(calls):
            n = first + i32(nth) * step
            at = u64(start + n)  # an unsigned index needs no check for counting from the end
            v0, v1 = processed[row, at], processed[row, at + u64(QUARTER)]
            v2, v3 = processed[row, at + u64(2 * QUARTER)], processed[row, at + u64(3 * QUARTER)]
            w0, w1, w2, w3 = high_words(tile * i32(QUARTER) + n, position, role, k0, k1)
            best = max(best, max(bounded(v0, w0, floor), bounded(v1, w1, floor)))
            best = max(best, max(bounded(v2, w2, floor), bounded(v3, w3, floor)))
    else:
        for nth in range(calls):
            at = u64(start + first + i32(nth) * step)
            v0, v1 = processed[row, at], processed[row, at + u64(QUARTER)]
            v2, v3 = processed[row, at + u64(2 * QUARTER)], processed[row, at + u64(3 * QUARTER)]
            best = max(best, max(max(kept(v0, floor), kept(v1, floor)), max(kept(v2, floor), kept(v3, floor))))
    return best


@device_function
def leading_tile(processed, row, begin, end, first, step, vocab_size, floor, noisy, position, role, k0, k1):
    """(bound, tile, rest): the highest bound of this thread's columns in tiles begin .. end - 1, the first tile that has it, and
    the highest bound of the other tiles."""
    bound, leader, rest = i32(_LOWEST), begin, i32(_LOWEST)
    calls = ceil_div(max(i32(QUARTER) - first, i32(0)), step)
    for tile in range(begin, end):
        here = tile_bound(processed, row, i32(tile), first, step, calls, vocab_size, floor, noisy, position, role, k0, k1)
        rest = max(rest, min(bound, here))
        if here > bound:
            bound, leader = here, i32(tile)
    return bound, leader, rest


@device_function
def may_win(turn, bound, rest, top, bar):
    """Whether this thread has a score to compute in a turn of a race, `bar` the best so far: first the thread of the warp with the
    highest bound, then whoever may beat what that one found, then those with a second tile that may."""
    mine = bound == top
    if turn == 1:
        mine = bound != top and bound >= float_order(bar)
    if turn == 2:
        bound = rest
        mine = rest >= float_order(bar)
    return mine and bound > NOTHING


@device_function
def reach_of(processed, row, column, vocab_size, floor, noisy, high):
    """At least the score of a column; -inf for one that is masked, NaN, or behind the last."""
    reach = NEG_INF
    if column < vocab_size:
        logit = processed[row, u64(column)]
        if logit >= floor:
            reach = f32(logit + gumbel_bound(high)) if noisy else logit
    return reach


@device_function
def reaches_of_call(processed, row, start, n, vocab_size, floor, noisy, highs):
    """reach_of the four columns of call n of the tile that begins at `start`."""
    column = start + n
    return (
        reach_of(processed, row, column, vocab_size, floor, noisy, highs[0]),
        reach_of(processed, row, column + i32(QUARTER), vocab_size, floor, noisy, highs[1]),
        reach_of(processed, row, column + i32(2 * QUARTER), vocab_size, floor, noisy, highs[2]),
        reach_of(processed, row, column + i32(3 * QUARTER), vocab_size, floor, noisy, highs[3]),
    )


@device_function
def foremost(reaches):
    """(reach, which) of the first of four with the highest reach."""
    r0, r1, r2, r3 = reaches
    top = max(max(r0, r1), max(r2, r3))
    which = i32(3)
    if r2 == top:
        which = i32(2)
    if r1 == top:
        which = i32(1)
    if r0 == top:
        which = i32(0)
    return top, which


@device_function
def without(reaches, which):
    """The four without the one that was looked at."""
    r0, r1, r2, r3 = reaches
    return (
        NEG_INF if which == i32(0) else r0,
        NEG_INF if which == i32(1) else r1,
        NEG_INF if which == i32(2) else r2,
        NEG_INF if which == i32(3) else r3,
    )


@device_function
def drawn(logit, highs, which, call, position, role, k0, k1):
    """logit + Gumbel noise of a column: `which` of its call, whose high words are `highs`."""
    low = word_of(low_words(call, position, role, k0, k1), which)
    return f32(logit + gumbel(word_of(highs, which), low))


@device_function
def race_columns(processed, row, tile, first, step, vocab_size, floor, noisy, position, role, k0, k1, bar, value, chosen):
    """(value, chosen): the best score so far and its column, behind this thread's columns of a tile. What stays below `bar` is not
    computed: that saves the low word and two logarithms."""
    start = i32(tile * i32(TILE))
    n = first
    while n < min(i32(QUARTER), vocab_size - start):
        call = tile * i32(QUARTER) + n
        highs = high_words(call, position, role, k0, k1)
        reaches = reaches_of_call(processed, row, start, n, vocab_size, floor, noisy, highs)
        top, which = foremost(reaches)
        while top >= max(bar, value) and top > NEG_INF:
            column = start + which * i32(QUARTER) + n
            score = processed[row, u64(column)]
            if noisy:
                score = drawn(score, highs, which, call, position, role, k0, k1)
            if score > value or (score == value and column < chosen):
                value = score
                chosen = column
            reaches = without(reaches, which)
            top, which = foremost(reaches)
        n += step
    return value, chosen


@kernel(writes=("best_score", "best_column"), overlap=True, max_registers=48)
def race_stripes(
    best_score,
    best_column,
    processed,
    threshold,
    temperature,
    seed,
    token_slot,
    positions,
    logits_indices,
    tiles_per_stripe,
    num_rows,
):
    """best_score[s, j], best_column[s, j] = the largest of logit + Gumbel noise in stripe s of row j, and its column.

    best_score  float32 [S, J] out: -inf where nothing is above -inf.   best_column int32 [S, J] out: NO_COLUMN there.
    processed   float32 [J, V], masked tokens -inf. NaN never wins; the lowest column wins a tie.
    threshold   float32 [J], >= -1e30: logits below it are masked too.
    temperature float32 [N] by slot: rows of a slot at 0 get no noise.   seed int32 [N, 2].
    token_slot, positions int32 [T];  logits_indices int32 [J].   tiles_per_stripe int32.   num_rows int32 [1] live rows.

    The noise of a column depends on the seed of the row's request, the position of the token that is drawn (one behind that of the
    row) and the column: kernels/random.py.

    Launch: grid (J, S), whole warps over the columns of a tile. Each thread bounds the scores of its columns, tile by tile; at the
    end the thread of a warp with the highest bound computes the scores behind it, and whoever still may beat that computes his. A
    block owns its stripes; barriers are reached by all its threads. Capture safe. Oracle: oracle_sampling.race_stripes.
    """
    values = cuda.shared.array(MAX_THREADS, f32)
    columns = cuda.shared.array(MAX_THREADS, i32)
    wait_for_launches()
    let_next_launch_start()
    vocab_size = i32(processed.shape[1])
    stripes = i32(best_score.shape[0])
    tiles = ceil_div(vocab_size, i32(TILE))
    first, step = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        at = i32(logits_indices[row])
        slot = i32(token_slot[at])
        noisy = slot >= i32(0) and temperature[slot] > f32(0.0)
        k0, k1 = unsigned(seed[max(slot, i32(0)), 0]), unsigned(seed[max(slot, i32(0)), 1])
        position, role = unsigned(positions[at] + i32(1)), unsigned(i32(ROLE_TOKEN))
        floor = threshold[row]
        for stripe in range(cuda.blockIdx.y, stripes, cuda.gridDim.y):
            value, bar = NEG_INF, NEG_INF
            chosen = NO_COLUMN
            begin = min(i32(stripe) * tiles_per_stripe, tiles)
            end = min(begin + tiles_per_stripe, tiles)
            bound, leader, rest = leading_tile(
                processed, row, begin, end, first, step, vocab_size, floor, noisy, position, role, k0, k1
            )
            top = warp_max(bound)
            if top > NOTHING:
                for turn in range(3):
                    if may_win(turn, bound, rest, top, bar):
                        tile, behind = (leader, leader + i32(1)) if turn < 2 else (begin, end)
                        while tile < behind:
                            value, chosen = race_columns(
                                processed, row, tile, first, step, vocab_size, floor, noisy, position, role, k0, k1, bar, value,
                                chosen,
                            )  # fmt: skip
                            tile += i32(1)
                    bar = warp_max(value)
            largest, lowest = block_best(value, chosen, values, columns)
            if cuda.threadIdx.x == 0:
                best_score[stripe, row] = largest
                best_column[stripe, row] = lowest


@device_function
def best_of_row(best_score, best_column, row):
    """(score, column) of the best stripe of a row, found by a warp together, the lowest column on a tie; NO_COLUMN for a row of
    nothing."""
    value = NEG_INF
    column = NO_COLUMN
    stripe = lane()
    while stripe < i32(best_score.shape[0]):
        if best_score[stripe, row] > value:
            value = best_score[stripe, row]
            column = best_column[stripe, row]
        stripe += warp_size()
    largest = warp_max(value)
    lowest = i32(-warp_max(i32(-column) if value == largest else i32(-NO_COLUMN)))
    return largest, lowest


@kernel(writes=("picks",), overlap=True)
def pick_rows(picks, best_score, best_column, num_rows):
    """The best of the stripes of each row.

    picks      int32 [J] out: the token drawn; NO_TOKEN for a row with nothing above -inf (kernels/argmax.py).
    best_score float32 [S, J], best_column int32 [S, J] of `race_stripes`.   num_rows int32 [1] live rows.

    Launch: a warp a row (grid J, block 32), any grid of whole warps. No barrier. Capture safe. Oracle: oracle_sampling.pick_rows.
    """
    wait_for_launches()
    let_next_launch_start()
    for row in range(warp_of_grid(), num_rows[0], warps_of_grid()):
        _, column = best_of_row(best_score, best_column, row)
        if lane() == i32(0):
            picks[row] = NO_TOKEN if column == NO_COLUMN else column
