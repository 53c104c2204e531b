"""The end of a step on the device: lengths, history and stops move without the host."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel

NOT_FINISHED, FINISHED_STOP, FINISHED_LENGTH = i32(0), i32(1), i32(2)
"""Values of `finished` by slot."""


@device_function
def advance_rows(
    num_computed, total_len, last_sampled, history, finished, sampled, num_sampled, num_rejected, idx_mapping, query_start_loc,
    max_total_len, min_total_len, stop_ids, num_requests,
):  # fmt: skip
    """What `advance` does."""
    rows = i32(num_requests[0])
    slots = i32(num_computed.shape[0])
    length = i32(history.shape[1])
    width = i32(sampled.shape[1])
    num_stops = i32(stop_ids.shape[1])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        kept = i32(0)
        if slot >= i32(0) and slot < slots and finished[slot] == NOT_FINISHED:
            emitted = min(i32(num_sampled[row]), width)
            total = i32(total_len[slot])
            ending = NOT_FINISHED
            if emitted > i32(0) and total >= max_total_len[slot]:
                ending = FINISHED_LENGTH
            for i in range(emitted):
                if ending == NOT_FINISHED:
                    token = i32(sampled[row, i])
                    known = max(token, i32(0))
                    if total + i < length:
                        history[slot, total + i] = known
                    last_sampled[slot] = known
                    kept += i32(1)
                    if total + kept >= max_total_len[slot]:
                        ending = FINISHED_LENGTH
                    if token >= i32(0) and total + kept >= min_total_len[slot]:
                        s = i32(0)
                        while s < num_stops and stop_ids[slot, s] >= i32(0):
                            if token == stop_ids[slot, s]:
                                ending = FINISHED_STOP
                            s += i32(1)
            query_len = i32(query_start_loc[row + i32(1)]) - i32(query_start_loc[row])
            num_computed[slot] += i32(query_len - num_rejected[row] - (emitted - kept))
            total_len[slot] = i32(total + kept)
            finished[slot] = ending
        for i in range(kept, width):
            sampled[row, i] = i32(-1)
        num_sampled[row] = kept


@kernel(writes=("num_computed", "total_len", "last_sampled", "history", "finished", "sampled", "num_sampled"))
def advance(
    num_computed,
    total_len,
    last_sampled,
    history,
    finished,
    sampled,
    num_sampled,
    num_rejected,
    idx_mapping,
    query_start_loc,
    max_total_len,
    min_total_len,
    stop_ids,
    num_requests,
):
    """Commit what the accept walk emitted, cut at the first stop.

    num_computed int32 [N] in/out: += query length - num_rejected - tokens cut: rejected and cut rows count as not computed, so that
                                  an emitting slot always has num_computed = total_len - 1.
    total_len    int32 [N] in/out: += tokens kept.           last_sampled int32 [N] out: the last token kept.
    history      int32 [N, L] in/out: tokens kept go to [slot, total_len...]; nothing is written at a position >= L.
    finished     int32 [N] in/out: 0 no, 1 at a stop id, 2 at max_total_len. A slot that is already finished keeps 0 tokens
                                  and nothing of it moves: the step in flight behind a stop is void.
    sampled      int32 [R, W] in/out: -1 behind the tokens kept.   num_sampled int32 [R] in/out: tokens kept.
    num_rejected int32 [R];  idx_mapping int32 [R];  query_start_loc int32 [R+1]
    max_total_len, min_total_len int32 [N] in tokens, prompt included;  stop_ids int32 [N, S], -1 behind the last of a slot,
                                  which is why few of them are looked at;  num_requests int32 [1]

    NO_TOKEN (kernels/argmax.py) goes into history and last_sampled as id 0, stops nothing, and stays in `sampled` for `publish`.

    The stop token is kept and counted. It stops only once the length with it reaches min_total_len. A stop id that is also
    the last token allowed reports 1. Rows whose slot is outside [0, N) keep 0 tokens.

    Launch: one thread a request row (grid 1, block 32..256); any grid and block is right. A slot appears in at most one row of a
    step, so row r and its slot belong to one thread. No barrier. Capture safe. Oracle: kernels.oracle_step.advance.
    """
    advance_rows(
        num_computed, total_len, last_sampled, history, finished, sampled, num_sampled, num_rejected, idx_mapping, query_start_loc,
        max_total_len, min_total_len, stop_ids, num_requests,
    )  # fmt: skip
