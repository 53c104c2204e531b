"""What requests ask of every logit: bias, penalties, allowed ids, temperature. Order as in vLLM."""

from __future__ import annotations

from kernels.lang import NEG_INF, cuda, device_function, f32, i32, kernel, u64
from kernels.penalties import penalised

_LARGEST = f32(1e30)


@device_function
def _finite(logit):
    """A logit within +-1e30, or -inf, which stands for NaN too: every row has a maximum that can be subtracted."""
    return min(logit, _LARGEST) if logit >= -_LARGEST else NEG_INF


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


@kernel(writes=("processed",))
def adjust_logits(
    processed,
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
    """processed = (logits + bias, penalised) / temperature where an id is allowed, else -inf.

    Row j belongs to slot_of_row[j] and is the local_position[j]-th of its block: the drafts before it (input ids of the logits rows
    in front of it) count as emitted, as they are when row j decides. temperature 0 divides by nothing.

    Args:
        processed: float32 [J, V] out, within +-1e30 or -inf, which a NaN becomes.
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

    Launch: grid (J, S), S blocks share the columns of a row, any S and block. A block owns its columns, in two passes with a
    barrier between: all of them by the counts, then those of bias and drafts anew. Safe under capture.
    Oracle: oracle_process.adjust_logits.
    """
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    width = i32((vocab + i32(cuda.gridDim.y) - i32(1)) // i32(cuda.gridDim.y))
    begin = i32(cuda.blockIdx.y) * width
    end = min(i32(begin + width), vocab)
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        if slot >= i32(0) and slot < i32(temperature.shape[0]):
            place = i32(local_position[row])
            rep, pre, fre = repetition[slot], presence[slot], frequency[slot]
            penalties = rep != f32(1.0) or pre != f32(0.0) or fre != f32(0.0)
            divisor = temperature[slot] if temperature[slot] > f32(0.0) else f32(1.0)
            limited = restricted[slot] != i32(0)
            if penalties:
                for i in range(begin + tid, end, threads):
                    value = penalised(logits[row, u64(i)], i32(counts[slot, u64(i)]), rep, pre, fre)
                    processed[row, u64(i)] = _finite(value / divisor)
            else:
                for i in range(begin + tid, end, threads):
                    processed[row, u64(i)] = _finite(logits[row, u64(i)] / divisor)
            cuda.syncthreads()
            for b in range(tid, num_bias[slot], threads):
                token = i32(bias_ids[slot, b])
                if token >= begin and token < end:
                    value = logits[row, token] + bias_values[slot, b]
                    if penalties:
                        count = i32(counts[slot, token]) + _in_block(token, input_ids, logits_indices, row, place)
                        value = penalised(value, count, rep, pre, fre)
                    processed[row, token] = _finite(value / divisor)
            if penalties:
                for back in range(tid, place, threads):
                    token = i32(input_ids[logits_indices[row - i32(back)]])
                    if token >= begin and token < end:
                        count = i32(counts[slot, token]) + _in_block(token, input_ids, logits_indices, row, place)
                        value = logits[row, token] + _bias_of(token, num_bias, bias_ids, bias_values, slot)
                        processed[row, token] = _finite(penalised(value, count, rep, pre, fre) / divisor)
            if limited:
                cuda.syncthreads()
                for i in range(begin + tid, end, threads):
                    if not _allowed(allowed, slot, i32(i)):
                        processed[row, u64(i)] = NEG_INF


@kernel(writes=("processed",))
def forbid_tokens(
    processed,
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

    Launch: a block a row, threads over stop ids and words; any grid and block. Only -inf is stored, so two stores to one place do
    not matter. No barrier. Safe under capture. Oracle: oracle_process.forbid_tokens.
    """
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    vocab = i32(processed.shape[1])
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(slot_of_row[row])
        if slot >= i32(0) and slot < i32(history.shape[0]):
            place = i32(local_position[row])
            committed = i32(total_len[slot])
            if committed + place < min_total_len[slot]:
                for s in range(tid, stop_ids.shape[1], threads):
                    token = i32(stop_ids[slot, s])
                    if token >= i32(0) and token < vocab:
                        processed[row, token] = NEG_INF
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
