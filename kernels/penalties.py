"""Token counts by slot, the state that frequency, presence and repetition penalties read, and the penalties themselves."""

from __future__ import annotations

from kernels.lang import cuda, device_function, f32, i32, kernel
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.slots import RECORD_PREFILL_LEN, RECORD_PROMPT_LEN

IN_PROMPT = i32(1 << 30)
"""Bit of a count that says: the id stands in the prompt. The bits below count how often it was emitted."""


@device_function
def penalised(logit, count, repetition, presence, frequency):
    """A logit under the three penalties, for an id with this count (IN_PROMPT included).

    Repetition (Keskar et al., 2019: CTRL) divides a positive logit and multiplies any other, of an id in prompt or output.
    Frequency is subtracted once for each time the id was emitted, presence once if it was: the prompt does not count for them.
    """
    emitted = i32(count & (IN_PROMPT - i32(1)))
    result = logit
    if count != i32(0):
        result = logit / repetition if logit > f32(0.0) else logit * repetition
    if emitted > i32(0):
        result -= frequency * f32(emitted) + presence
    return result


@kernel(writes=("counts",))
def begin_counts(counts, record, tokens):
    """Counts of a request that enters a slot: nothing of the previous owner stays.

    counts int32 [N, V] out: row of the slot = IN_PROMPT for ids of the prompt, plus how often an id was emitted before (after a
                             preemption the tokens already returned are known at admission).
    record int32 [>= 6]: the admission record (kernels/slots.py).     tokens int32 [>= prefill length]: prompt and output.
    Ids outside [0, V) count nothing; a slot outside [0, N) writes nothing.

    Launch: one block of any size; grid 1, because the row is cleared behind a barrier. Capture safe.
    Oracle: kernels.oracle_process.begin_counts.
    """
    tid = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    slot = i32(record[0])
    vocab = i32(counts.shape[1])
    inside = slot >= i32(0) and slot < i32(counts.shape[0])
    prompt = min(i32(record[RECORD_PROMPT_LEN]), i32(tokens.shape[0]))
    known = min(i32(record[RECORD_PREFILL_LEN]), i32(tokens.shape[0]))
    if inside:
        for i in range(tid, vocab, threads):
            counts[slot, i] = i32(0)
    cuda.syncthreads()
    if inside:
        # An id that stands twice in the prompt is stored twice, with the same value.
        for i in range(tid, prompt, threads):
            token = i32(tokens[i])
            if token >= i32(0) and token < vocab:
                counts[slot, token] = IN_PROMPT
    cuda.syncthreads()
    if inside:
        for i in range(prompt + tid, known, threads):
            token = i32(tokens[i])
            if token >= i32(0) and token < vocab:
                cuda.atomic.add(counts, (slot, token), i32(1))


@kernel(writes=("counts",), overlap=True)
def count_tokens(counts, sampled, num_sampled, idx_mapping, num_requests):
    """counts[slot, id] += 1 for each token that a step kept. Runs after `advance`, which has cut num_sampled at a stop.

    counts      int32 [N, V] in/out: how often a slot has emitted an id.
    sampled     int32 [R, W], num_sampled int32 [R], idx_mapping int32 [R], num_requests int32 [1].
    Ids outside [0, V) and rows whose slot is outside [0, N) count nothing.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. A slot appears in at most one row of a
    step, so its counts belong to one thread and need no atomics. No barrier. Capture safe.
    Oracle: kernels.oracle_step.count_tokens.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(num_requests[0])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        if slot >= i32(0) and slot < i32(counts.shape[0]):
            for i in range(min(i32(num_sampled[row]), i32(sampled.shape[1]))):
                token = i32(sampled[row, i])
                if token >= i32(0) and token < i32(counts.shape[1]):
                    counts[slot, token] += i32(1)
