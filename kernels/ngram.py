"""Prompt lookup on the device: draft what followed an earlier occurrence of the latest tokens."""

from __future__ import annotations

from kernels.lang import MAX_THREADS, cuda, i32, kernel


@kernel(writes=("draft_tokens", "num_draft"))
def ngram_propose(draft_tokens, num_draft, history, total_len, finished, idx_mapping, num_sampled, min_n, max_n, num_requests):
    """Propose the tokens that followed an earlier occurrence of the last min_n..max_n tokens of each request.

    draft_tokens int32 [N, k] out: drafts of the row's slot, -1 where there is none.     num_draft int32 [N] out: 0..k.
    history      int32 [N, L], total_len int32 [N]: the tokens known, after `advance`. Nothing behind total_len is read.
    finished     int32 [N], idx_mapping int32 [R], num_sampled int32 [R], num_requests int32 [1]; min_n, max_n in tokens.

    The longest match wins, then the earliest occurrence; the match may overlap the suffix. A row that emitted nothing (it
    is still in its prompt) or is finished gets no drafts: its slot is cleared, so that no draft of an earlier step survives.

    Launch: grid R (a block a request row), any block up to MAX_THREADS: threads share out the end positions, then a tree picks the
    best. The pick is by (length, position), so the block size changes nothing. Three kinds of barrier, all reached by every
    thread of the block: the loop over rows is uniform. Row r and its slot belong to block r % grid. Capture safe.
    Oracle: kernels.oracle_step.ngram_propose. Method: prompt lookup decoding (Saxena 2023), as vLLM's n-gram proposer.
    """
    best_length = cuda.shared.array(MAX_THREADS, i32)
    best_end = cuda.shared.array(MAX_THREADS, i32)
    rows = i32(num_requests[0])
    slots = i32(draft_tokens.shape[0])
    k = i32(draft_tokens.shape[1])
    thread = i32(cuda.threadIdx.x)
    threads = i32(cuda.blockDim.x)
    for row in range(i32(cuda.blockIdx.x), rows, i32(cuda.gridDim.x)):
        slot = i32(idx_mapping[row])
        known = slot >= i32(0) and slot < slots
        total = i32(0)
        if known and num_sampled[row] > i32(0) and finished[slot] == i32(0):
            total = min(i32(total_len[slot]), i32(history.shape[1]))
        # A match of n tokens that ends before `end` has its continuation at `end`; the smallest end is the earliest occurrence.
        longest = i32(0)
        earliest = i32(0)
        for end in range(thread + i32(1), total, threads):
            n = i32(0)
            while n < max_n and n < end and history[slot, end - n - i32(1)] == history[slot, total - n - i32(1)]:
                n += i32(1)
            if n >= min_n and n > longest:
                longest = n
                earliest = end
        best_length[thread] = longest
        best_end[thread] = earliest
        cuda.syncthreads()
        width = threads
        while width > i32(1):
            half = i32((width + i32(1)) // i32(2))
            if thread < width - half:
                other = i32(thread + half)
                longer = best_length[other] > best_length[thread]
                if longer or (best_length[other] == best_length[thread] and best_end[other] < best_end[thread]):
                    best_length[thread] = best_length[other]
                    best_end[thread] = best_end[other]
            cuda.syncthreads()
            width = half
        source = i32(best_end[0])
        count = i32(0)
        if best_length[0] > i32(0):
            count = min(k, i32(total - source))
        if known:
            for i in range(thread, k, threads):
                draft_tokens[slot, i] = history[slot, source + i] if i < count else i32(-1)
            if thread == i32(0):
                num_draft[slot] = count
        cuda.syncthreads()
