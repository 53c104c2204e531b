"""A target whose next token is arithmetic, and a proposer that is right exactly where a script says so.

They stand where a model and a drafter stand, in the same graphs, so that every other part of a step is the product's own. With
`memory` 1 the next token depends on the token, on its position, and on what the paged cache holds for the tokens before it: a
wrong position, a wrong block, a cache cell overwritten too early or a draft that was fed but not compared changes the text. With
`memory` 0 it depends on the last token alone: the text soon repeats itself, which is what prompt lookup needs.
"""

from __future__ import annotations

from kernels.lang import cuda, device_function, f32, i32, kernel

VOCABULARY = 32
"""Ids 1..31 are produced; 0 never is, so that memory that nobody wrote is noticed."""

ACCEPT, REJECT, NO_DRAFT = 1, 0, 2
"""Values of a script: the true token, the true token plus one, no draft from here on."""


@device_function
def toy_token(last, length, checksum):
    """The token that follows a prefix of `length` tokens that ends in `last`; all of it modulo 31, plus one."""
    return i32((i32(7) * last + i32(3) * length + checksum) % i32(31) + i32(1))


@device_function
def toy_checksum(checksum, position, token):
    """Checksum of a prefix, one token longer."""
    return i32((checksum + (position + i32(1)) * token) % i32(31))


@kernel(writes=("cache",))
def toy_store(cache, input_ids, slot_mapping, num_tokens):
    """cache [blocks * block_size] int32: the id of each cached token, where a model keeps its keys. Threads over tokens."""
    for row in range(cuda.grid(1), num_tokens[0], cuda.gridsize(1)):
        if slot_mapping[row] >= i32(0):
            cache[slot_mapping[row]] = input_ids[row]


@kernel(writes=("row_argmax",))
def toy_argmax(row_argmax, cache, block_tables, input_ids, positions, token_slot, logits_indices, block_size, memory, num_rows):
    """row_argmax[j] = the token after row logits_indices[j], which sees positions 0..positions[row] of its slot.

    Where the slot has no block for one of these positions it is 0, which is never a true token.

    Threads over logits rows; a row is owned by one thread. Oracle: runtime.gates.toy.next_token.
    """
    for j in range(cuda.grid(1), num_rows[0], cuda.gridsize(1)):
        row = logits_indices[j]
        slot = token_slot[row]
        checksum = i32(0)
        covered = True
        for position in range(i32(positions[row] + i32(1)) * memory):
            block = i32(block_tables[slot, position // block_size])
            if block < i32(0):
                covered = False
            else:
                checksum = toy_checksum(checksum, i32(position), cache[block * block_size + position % block_size])
        token = toy_token(input_ids[row], i32(positions[row] + i32(1)) * memory, checksum)
        row_argmax[j] = token if covered else i32(0)


@kernel(writes=("draft_tokens", "num_draft"))
def scripted_propose(draft_tokens, num_draft, history, total_len, finished, idx_mapping, num_sampled, script, memory, num_requests):
    """Draft i of a slot is the true token, a wrong one, or none, by script [N, P] at (position of the draft) % P.

    The truth is computed from history [N, L] up to total_len [N]. Rows that emitted nothing, or are finished, get no drafts.
    Threads over rows. Oracle: runtime.gates.toy.scripted_drafts.
    """
    k = draft_tokens.shape[1]
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        slot = idx_mapping[row]
        length = i32(total_len[slot])
        drafting = num_sampled[row] > i32(0) and finished[slot] == i32(0)
        checksum = i32(0)
        last = i32(0)
        if drafting:
            for position in range(length * memory):
                checksum = toy_checksum(checksum, i32(position), history[slot, position])
            last = i32(history[slot, length - i32(1)])
        count = i32(0)
        for i in range(k):
            verdict = i32(NO_DRAFT)
            if drafting:
                verdict = i32(script[slot, (length + i) % script.shape[1]])
            if verdict == i32(NO_DRAFT):
                drafting = False
                draft_tokens[slot, i] = i32(-1)
            else:
                truth = toy_token(last, i32(length + i) * memory, checksum)
                draft_tokens[slot, i] = truth if verdict == i32(ACCEPT) else i32(truth % i32(31) + i32(1))
                if memory > i32(0):
                    checksum = toy_checksum(checksum, i32(length + i), truth)
                last = truth
                count += i32(1)
        num_draft[slot] = count


@kernel(writes=("residual",))
def toy_residual(residual, table, input_ids, positions, block, num_tokens):
    """residual[t] = table[token + 5 block] + table[position + 11 block] / 2, row numbers modulo the rows of `table`.

    What stands for the residual stream [T, H] float32 behind one block: it says which token stands where. table float32 [V, H].
    Threads over tokens. Oracle: runtime.gates.toy_drafter.block_drafts.
    """
    rows = i32(table.shape[0])
    for t in range(cuda.grid(1), num_tokens[0], cuda.gridsize(1)):
        token = i32(max(input_ids[t], i32(0)) + i32(5) * block) % rows
        place = i32(positions[t] + i32(11) * block) % rows
        for i in range(residual.shape[1]):
            residual[t, i] = table[token, i] + f32(0.5) * table[place, i]


@kernel(writes=("draft_tokens",))
def overrule_drafts(draft_tokens, num_draft, history, total_len, idx_mapping, script, memory, num_requests):
    """The true token in the place of a draft where script [N, P] says ACCEPT at its position modulo P; others stay.

    Of the num_draft [N] drafts of a slot; the truth is computed as in `scripted_propose`. Threads over rows.
    """
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        slot = idx_mapping[row]
        if num_draft[slot] > i32(0):
            length = i32(total_len[slot])
            checksum = i32(0)
            for position in range(length * memory):
                checksum = toy_checksum(checksum, i32(position), history[slot, position])
            last = i32(history[slot, length - i32(1)])
            for i in range(num_draft[slot]):
                truth = toy_token(last, i32(length + i) * memory, checksum)
                if script[slot, (length + i) % script.shape[1]] == i32(ACCEPT):
                    draft_tokens[slot, i] = truth
                if memory > i32(0):
                    checksum = toy_checksum(checksum, i32(length + i), truth)
                last = truth
