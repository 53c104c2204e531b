"""What requests ask of every logit: bias, penalties, allowed ids, temperature. Order as in vLLM."""

from __future__ import annotations

from kernels.argmax import float_of_order, float_order
from kernels.block_reduce import block_largest
from kernels.lang import MAX_THREADS, NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.penalties import penalised
from kernels.process_row import AT_ONCE, four_of, part_of
from kernels.project import ceil_div

_LARGEST = f32(1e30)
_LOWEST = i32(-2147483648)


@device_function
def finite(logit):
    """A logit within +-1e30, or -inf, which stands for NaN too: every row has a maximum that can be subtracted."""
    return min(logit, _LARGEST) if logit >= -_LARGEST else NEG_INF


@device_function
def stripe_maximum(values, row, begin, end, scratch):
    """The largest of values[row, begin:end], -inf of none, returned to every thread of the block."""
    order = i32(_LOWEST)
    for i in range(begin + i32(cuda.threadIdx.x), end, cuda.blockDim.x):
        order = max(order, float_order(values[row, u64(i)]))
    return block_largest(float_of_order(order), scratch)


@device_function
def _in_block(token, input_ids, logits_indices, row, place):
    """How often `token` stands among the drafts before logits row `row`, the `place`-th of its block."""
    times = i32(0)
    for back in range(place):
        if i32(input_ids[logits_indices[row - i32(back)]]) == token:
            times += i32(1)
    return times


@device_function
def _bias_of(token, num_bias, bias_ids, bias_values, slot):
    bias = f32(0.0)
    for b in range(num_bias[slot]):
        if bias_ids[slot, b] == token:
            bias = bias_values[slot, b]
    return bias


@device_function
def _allowed(allowed, slot, token):
    return (i32(allowed[slot, token >> i32(5)]) >> i32(token & i32(31))) & i32(1) != i32(0)


@device_function
def _scale(processed, logits, row, begin, end, divisor):
    """processed = logits / divisor, and the float_order of this thread's largest. The common case: nothing else is asked for."""
    step = i32(cuda.blockDim.x)
    first = i32(begin + i32(cuda.threadIdx.x))
    count = ceil_div(max(end - first, i32(0)), step)
    order = i32(_LOWEST)
    for nth in range(count >> i32(2)):
        i = first + i32(nth) * i32(AT_ONCE) * step
        v0, v1, v2, v3 = four_of(logits, row, i, step)
        v0, v1, v2, v3 = finite(v0 / divisor), finite(v1 / divisor), finite(v2 / divisor), finite(v3 / divisor)
        processed[row, u64(i)] = v0
        processed[row, u64(i + step)] = v1
        processed[row, u64(i + i32(2) * step)] = v2
        processed[row, u64(i + i32(3) * step)] = v3
        order = max(order, max(max(float_order(v0), float_order(v1)), max(float_order(v2), float_order(v3))))
    for nth in range(count & i32(-AT_ONCE), count):
        i = first + i32(nth) * step
        value = finite(logits[row, u64(i)] / divisor)
        processed[row, u64(i)] = value
        order = max(order, float_order(value))
    return order


@kernel(writes=("processed", "best"), overlap=True, max_registers=40)
def adjust_logits(
    processed,
    best,
    logits,
    temperature,
    repetition,
    presence,
    frequency,
    counts,
    num_bias,
    bias_ids,
    bias_values,
    restricted,
    allowed,
    slot_of_row,
    local_position,
    input_ids,
    logits_indices,
    num_rows,
):
    """processed = (logits + bias, penalised) / temperature where an id is allowed, else -inf; best = the largest of each stripe.

    Row j belongs to slot_of_row[j] and is the local_position[j]-th of its block: the drafts before it (input ids of the logits rows
    in front of it) count as emitted, as they are when row j decides. temperature 0 divides by nothing.

    Args:
        processed: float32 [J, V] out, within +-1e30 or -inf, which a NaN becomes.
        best: float32 [S, J] out: of the s-th of S stripes of ceil(V / S) columns, -inf where it has none.
        logits: float32 [J, V'], V' >= V.
        temperature, repetition, presence, frequency: float32 [N]; 1, 0, 0 are no penalties.
        counts: int32 [N, V] (kernels/penalties.py), not read for a slot without penalties.
        num_bias: int32 [N], how many of the B are there.
        bias_ids: int32 [N, B], an id at most once.
        bias_values: float32 [N, B].
        restricted: int32 [N], 1 where `allowed` counts.
        allowed: int32 [N, W], 32 W >= V: bit v % 32 of word v / 32.
        slot_of_row, local_position: int32 [J].
        input_ids: int32 [T].
        logits_indices: int32 [J].
        num_rows: int32 [1], live rows.

    A row whose slot is outside [0, N) is left alone.

    Launch: grid (J, S), threads over the columns of a stripe. A block owns its stripes, in passes with a barrier between: all
    columns by the counts, then those of bias and drafts anew. Safe under capture. Oracle: oracle_process.adjust_logits.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    wait_for_launches()
    let_next_launch_start()
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    stripes = i32(best.shape[0])
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        if slot >= i32(0) and slot < i32(temperature.shape[0]):
            place = i32(local_position[row])
            rep, pre, fre = repetition[slot], presence[slot], frequency[slot]
            penalties = rep != f32(1.0) or pre != f32(0.0) or fre != f32(0.0)
            divisor = temperature[slot] if temperature[slot] > f32(0.0) else f32(1.0)
            limited = restricted[slot] != i32(0)
            for stripe in range(cuda.blockIdx.y, stripes, cuda.gridDim.y):
                begin, end = part_of(vocab, stripe, stripes)
                if not penalties and not limited and num_bias[slot] == i32(0):
                    order = _scale(processed, logits, row, begin, end, divisor)
                    largest = block_largest(float_of_order(order), scratch)
                else:
                    for i in range(begin + tid, end, threads):
                        value = logits[row, u64(i)]
                        if penalties:
                            value = penalised(value, i32(counts[slot, u64(i)]), rep, pre, fre)
                        if limited and not _allowed(allowed, slot, i32(i)):
                            value = NEG_INF
                        processed[row, u64(i)] = finite(value / divisor)
                    cuda.syncthreads()
                    for b in range(tid, num_bias[slot], threads):
                        token = i32(bias_ids[slot, b])
                        if token >= begin and token < end and (not limited or _allowed(allowed, slot, token)):
                            value = logits[row, token] + bias_values[slot, b]
                            if penalties:
                                count = i32(counts[slot, token]) + _in_block(token, input_ids, logits_indices, row, place)
                                value = penalised(value, count, rep, pre, fre)
                            processed[row, token] = finite(value / divisor)
                    drafts = place if penalties else i32(0)
                    for back in range(tid, drafts, threads):
                        token = i32(input_ids[logits_indices[row - i32(back)]])
                        if token >= begin and token < end and (not limited or _allowed(allowed, slot, token)):
                            count = i32(counts[slot, token]) + _in_block(token, input_ids, logits_indices, row, place)
                            value = logits[row, token] + _bias_of(token, num_bias, bias_ids, bias_values, slot)
                            processed[row, token] = finite(penalised(value, count, rep, pre, fre) / divisor)
                    cuda.syncthreads()
                    largest = stripe_maximum(processed, row, begin, end, scratch)
                if tid == i32(0):
                    best[stripe, row] = largest


@kernel(writes=("processed", "best"), overlap=True)
def forbid_tokens(
    processed,
    best,
    history,
    total_len,
    min_total_len,
    stop_ids,
    num_bad,
    bad_starts,
    bad_tokens,
    slot_of_row,
    local_position,
    input_ids,
    logits_indices,
    num_rows,
):
    """processed = -inf for stop ids of a request that is too short to stop, and for the last token of a bad word whose beginning
    stands at the end of what row j continues: the committed tokens, then the drafts before the row.

    Args:
        processed: float32 [J, V] in/out.
        best: float32 [S, J] in/out, as adjust_logits left it; of a row in which something was forbidden the largest are found anew.
        history: int32 [N, L] prompt and committed tokens.
        total_len: int32 [N] of them; row j continues total_len + local_position[j] tokens.
        min_total_len: int32 [N]: below it no stop id may come.
        stop_ids: int32 [N, S], -1 = none.
        num_bad: int32 [N], how many of the M words are there.
        bad_starts: int32 [N, M + 1]: word m is bad_tokens[bad_starts[m] : bad_starts[m + 1]], never empty.
        bad_tokens: int32 [N, Q].
        slot_of_row, local_position, logits_indices: int32 [J].
        input_ids: int32 [T].
        num_rows: int32 [1], live rows.

    Launch: a block a row, threads over stop ids and words. Only -inf is stored, so two stores to one place do not matter. Barriers
    are reached by all threads of a block. Safe under capture. Oracle: oracle_process.forbid_tokens.
    """
    scratch = cuda.shared.array(MAX_THREADS, f32)
    forbidden = cuda.shared.array(1, i32)
    wait_for_launches()
    let_next_launch_start()
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    stripes = i32(best.shape[0])
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        if slot >= i32(0) and slot < i32(history.shape[0]):
            place = i32(local_position[row])
            committed = i32(total_len[slot])
            short = committed + place < min_total_len[slot]
            if short or num_bad[slot] > i32(0):
                if tid == i32(0):
                    forbidden[0] = i32(0)
                cuda.syncthreads()
                num_stops = i32(stop_ids.shape[1]) if short else i32(0)
                for s in range(tid, num_stops, threads):
                    token = i32(stop_ids[slot, s])
                    if token >= i32(0) and token < vocab:
                        processed[row, token] = NEG_INF
                        forbidden[0] = i32(1)
                for m in range(tid, num_bad[slot], threads):
                    start = i32(bad_starts[slot, m])
                    last = i32(bad_starts[slot, m + i32(1)]) - i32(1)
                    matches = last - start <= committed + place
                    back = i32(1)
                    while matches and back <= last - start:
                        # The back-th token before the row: a draft of the block, or committed.
                        if back <= place:
                            before = i32(input_ids[logits_indices[row - back + i32(1)]])
                        else:
                            before = i32(history[slot, committed + place - back])
                        matches = before == bad_tokens[slot, last - back]
                        back += i32(1)
                    token = i32(bad_tokens[slot, last])
                    if matches and token >= i32(0) and token < vocab:
                        processed[row, token] = NEG_INF
                        forbidden[0] = i32(1)
                cuda.syncthreads()
                if forbidden[0] != i32(0):
                    for stripe in range(stripes):
                        begin, end = part_of(vocab, stripe, stripes)
                        largest = stripe_maximum(processed, row, begin, end, scratch)
                        if tid == i32(0):
                            best[stripe, row] = largest
                cuda.syncthreads()
