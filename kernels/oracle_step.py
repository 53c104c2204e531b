"""Plain NumPy meaning of the step kernels. Tests compare against it; nothing else imports it.

Each function has its kernel's name and takes its inputs; what the kernel writes in place is returned as new arrays. Where a kernel
leaves part of an output untouched the oracle takes the array's contents from before. Only live rows are passed:
R = len(idx_mapping).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


def _spans(prefix: Ints, requests: int) -> list[tuple[int, int]]:
    return [(int(prefix[r]), int(prefix[r + 1])) for r in range(requests)]


def cache_cell(table: Ints, position: int, block_size: int, max_model_len: int) -> int:
    """Cell of one position through one block table row; -1 where there is none."""
    column, offset = divmod(position, block_size)
    if position >= max_model_len or column >= len(table) or table[column] < 0:
        return -1
    return int(table[column]) * block_size + offset


def prepare(
    capacity_tokens: int,
    capacity_requests: int,
    num_computed: Ints,
    idx_mapping: Ints,
    query_start_loc: Ints,
    block_tables: Ints,
    block_size: int,
    max_model_len: int,
) -> tuple[Ints, Ints, Ints, Ints]:
    """(positions, seq_lens, token_slot, slot_mapping), pads included."""
    positions = np.zeros(capacity_tokens, np.int32)
    seq_lens = np.zeros(capacity_requests, np.int32)
    token_slot = np.full(capacity_tokens, -1, np.int32)
    slot_mapping = np.full(capacity_tokens, -1, np.int32)
    for row, (start, end) in enumerate(_spans(query_start_loc, len(idx_mapping))):
        slot = int(idx_mapping[row])
        wanted = int(num_computed[slot]) + np.arange(end - start)
        positions[start:end] = np.minimum(wanted, max_model_len - 1)
        seq_lens[row] = num_computed[slot] + end - start
        token_slot[start:end] = slot
        slot_mapping[start:end] = [cache_cell(block_tables[slot], int(p), block_size, max_model_len) for p in wanted]
    return positions, seq_lens, token_slot, slot_mapping


def prefill_inputs(
    input_ids: Ints,
    next_prefill: Ints,
    history: Ints,
    prefill_len: Ints,
    num_computed: Ints,
    idx_mapping: Ints,
    query_start_loc: Ints,
) -> tuple[Ints, Ints]:
    """(input_ids, next_prefill)."""
    input_ids, next_prefill = input_ids.copy(), next_prefill.copy()
    for (start, end), slot in zip(_spans(query_start_loc, len(idx_mapping)), idx_mapping, strict=True):
        computed = int(num_computed[slot])
        if computed >= prefill_len[slot]:
            continue
        chunk = history[slot, computed : computed + end - start]
        input_ids[start : start + len(chunk)] = chunk
        if computed + end - start < prefill_len[slot]:
            next_prefill[slot] = history[slot, computed + end - start]
    return input_ids, next_prefill


def combine(
    input_ids: Ints,
    logits_indices: Ints,
    idx_mapping: Ints,
    last_sampled: Ints,
    query_start_loc: Ints,
    seq_lens: Ints,
    prefill_len: Ints,
    draft_tokens: Ints,
    cu_num_logits: Ints,
    bonus: int,
) -> tuple[Ints, Ints]:
    """(input_ids, logits_indices)."""
    input_ids, logits_indices = input_ids.copy(), logits_indices.copy()
    for row, (base, stop) in enumerate(_spans(cu_num_logits, len(idx_mapping))):
        slot, end, seq_len = int(idx_mapping[row]), int(query_start_loc[row + 1]), int(seq_lens[row])
        num_logits = stop - base
        logits_indices[base:stop] = np.arange(end - num_logits, end)
        if seq_len <= prefill_len[slot] or num_logits == 0:
            continue
        if bonus and seq_len - num_logits >= prefill_len[slot]:
            input_ids[end - num_logits] = last_sampled[slot]
        input_ids[end - num_logits + bonus : end] = draft_tokens[slot, : num_logits - bonus]
    return input_ids, logits_indices


def accept_greedy(
    width: int, row_argmax: Ints, input_ids: Ints, logits_indices: Ints, cu_num_logits: Ints, requests: int
) -> tuple[Ints, Ints, Ints]:
    """(sampled [R, width], num_sampled [R], num_drafts [R])."""
    sampled = np.full((requests, width), -1, np.int32)
    num_sampled = np.zeros(requests, np.int32)
    num_drafts = np.zeros(requests, np.int32)
    for row, (base, stop) in enumerate(_spans(cu_num_logits, requests)):
        drafts = input_ids[logits_indices[base + 1 : stop]]
        target = row_argmax[base:stop]
        matches = (drafts == target[:-1]) & (drafts >= 0)
        accepted = len(matches) if matches.all() else int(np.argmin(matches))
        emitted = target[: accepted + 1]
        sampled[row, : len(emitted)] = emitted
        num_sampled[row] = len(emitted)
        num_drafts[row] = np.count_nonzero(drafts >= 0)
    return sampled, num_sampled, num_drafts


def sampled_rejected(
    num_sampled: Ints, seq_lens: Ints, cu_num_logits: Ints, idx_mapping: Ints, prefill_len: Ints
) -> tuple[Ints, Ints]:
    """(num_sampled, num_rejected)."""
    requests = len(idx_mapping)
    emitting = seq_lens[:requests] >= prefill_len[idx_mapping]
    kept = np.where(emitting, num_sampled[:requests], 0).astype(np.int32)
    return kept, np.where(emitting, np.diff(cu_num_logits[: requests + 1]) - kept, 0).astype(np.int32)


def advance(
    num_computed: Ints,
    total_len: Ints,
    last_sampled: Ints,
    history: Ints,
    finished: Ints,
    sampled: Ints,
    num_sampled: Ints,
    num_rejected: Ints,
    idx_mapping: Ints,
    query_start_loc: Ints,
    max_total_len: Ints,
    min_total_len: Ints,
    stop_ids: Ints,
) -> dict[str, Ints]:
    """Every array that the kernel writes, by name."""
    after = {
        name: array.copy()
        for name, array in {
            "num_computed": num_computed,
            "total_len": total_len,
            "last_sampled": last_sampled,
            "history": history,
            "finished": finished,
            "sampled": sampled,
            "num_sampled": num_sampled,
        }.items()
    }
    for row, slot in enumerate(idx_mapping):
        emitted = sampled[row, : num_sampled[row]].tolist()
        kept: list[int] = []
        if not finished[slot]:
            limit = int(max_total_len[slot])
            for token in emitted:
                if total_len[slot] + len(kept) >= limit or after["finished"][slot]:
                    break
                kept.append(token)
                length = total_len[slot] + len(kept)
                if length >= min_total_len[slot] and token in set(stop_ids[slot].tolist()) - {-1}:
                    after["finished"][slot] = 1
            if emitted and not after["finished"][slot] and total_len[slot] + len(kept) >= limit:
                after["finished"][slot] = 2
            query_len = query_start_loc[row + 1] - query_start_loc[row]
            cut = len(emitted) - len(kept)
            after["num_computed"][slot] = num_computed[slot] + query_len - num_rejected[row] - cut
            after["total_len"][slot] = total_len[slot] + len(kept)
            for position, token in enumerate(kept, start=int(total_len[slot])):
                if position < history.shape[1]:
                    after["history"][slot, position] = max(token, 0)
            if kept:
                after["last_sampled"][slot] = max(kept[-1], 0)
        after["sampled"][row] = kept + [-1] * (sampled.shape[1] - len(kept))
        after["num_sampled"][row] = len(kept)
    return after


def count_tokens(counts: Ints, sampled: Ints, num_sampled: Ints, idx_mapping: Ints) -> Ints:
    """counts after the step."""
    counts = counts.copy()
    for row, slot in enumerate(idx_mapping):
        np.add.at(counts[slot], sampled[row, : num_sampled[row]], 1)
    return counts


def find_ngram(tokens: list[int], min_n: int, max_n: int, k: int) -> list[int]:
    """What followed the earliest occurrence of the longest suffix of `tokens` that occurs before; [] when there is none."""
    total = len(tokens)
    for n in range(min(max_n, total - 1), min_n - 1, -1):
        for start in range(total - n):
            if tokens[start : start + n] == tokens[total - n :]:
                return tokens[start + n : start + n + k]
    return []


def ngram_propose(
    draft_tokens: Ints,
    num_draft: Ints,
    history: Ints,
    total_len: Ints,
    finished: Ints,
    idx_mapping: Ints,
    num_sampled: Ints,
    min_n: int,
    max_n: int,
) -> tuple[Ints, Ints]:
    """(draft_tokens, num_draft)."""
    draft_tokens, num_draft = draft_tokens.copy(), num_draft.copy()
    for row, slot in enumerate(idx_mapping):
        drafts: list[int] = []
        if num_sampled[row] > 0 and not finished[slot]:
            drafts = find_ngram(history[slot, : total_len[slot]].tolist(), min_n, max_n, draft_tokens.shape[1])
        draft_tokens[slot] = drafts + [-1] * (draft_tokens.shape[1] - len(drafts))
        num_draft[slot] = len(drafts)
    return draft_tokens, num_draft


def admit(state: dict[str, Ints], record: Ints, tokens: Ints) -> dict[str, Ints]:
    """`state` (the written parameters of the kernel by name) with the record's slot given to its request."""
    state = {name: array.copy() for name, array in state.items()}
    slot, prefill_len, num_computed, max_total_len, min_total_len = (int(value) for value in record[:5])
    known = tokens[:prefill_len]
    fields: dict[str, npt.ArrayLike] = {
        "num_computed": num_computed,
        "total_len": prefill_len,
        "prefill_len": prefill_len,
        "last_sampled": known[num_computed - 1] if 0 < num_computed <= prefill_len else 0,
        "draft_tokens": -1,
        "num_draft": 0,
        "finished": 0,
        "max_total_len": max_total_len,
        "min_total_len": min_total_len,
        "stop_ids": record[8:],
        "history": np.append([*known, max(record[6], -1)], np.full(state["history"].shape[1], -1))[: state["history"].shape[1]],
    }
    for name, value in fields.items():
        state[name][slot] = value
    return state


def staged_write(target: Ints, writes: Ints) -> Ints:
    """target after the triples, in order."""
    target = target.copy()
    for row, column, value in writes.tolist():
        if 0 <= row < target.shape[0] and 0 <= column < target.shape[1]:
            target[row, column] = value
    return target


def expand_rows(idx_mapping: Ints, cu_num_logits: Ints) -> tuple[Ints, Ints]:
    """(slot_of_row, local_position)."""
    counts = np.diff(cu_num_logits[: len(idx_mapping) + 1])
    return np.repeat(idx_mapping, counts), np.concatenate([np.arange(n, dtype=np.int32) for n in counts])


def draft_inputs(
    target_positions: Ints, seq_lens: Ints, block_tables: Ints, block_size: int, max_model_len: int, capacity: int
) -> tuple[Ints, Ints, Ints]:
    """(positions, slot_mapping, seq_lens), pads included."""
    rows = len(target_positions)
    past_end = target_positions + 1 >= max_model_len
    positions = np.zeros(capacity, np.int32)
    slot_mapping = np.full(capacity, -1, np.int32)
    lengths = np.zeros(capacity, np.int32)
    positions[:rows] = np.where(past_end, 0, target_positions + 1)
    lengths[:rows] = np.where(past_end, 1, seq_lens + 1)
    slot_mapping[:rows] = [
        cache_cell(table, int(p) + 1, block_size, max_model_len) for p, table in zip(target_positions, block_tables, strict=False)
    ]
    return positions, slot_mapping, lengths


def publish(
    outcome: Ints, sampled: Ints, num_sampled: Ints, num_drafts: Ints, finished: Ints, idx_mapping: Ints
) -> tuple[Ints, Ints]:
    """(outcome, sampled): id 0 for each emitted -1, and a row of `outcome` for each live row: num_sampled, num_drafts, finished of
    its slot, 1 + the place of the first emitted -1, sampled."""
    outcome, sampled = outcome.copy(), sampled.copy()
    for row, slot in enumerate(idx_mapping):
        ended = finished[slot] if 0 <= slot < len(finished) else 0
        places = np.flatnonzero(sampled[row, : num_sampled[row]] < 0)
        sampled[row, places] = 0
        outcome[0, row] = [num_sampled[row], num_drafts[row], ended, places[0] + 1 if len(places) else 0, *sampled[row]]
    return outcome, sampled


def clear_drafts(draft_tokens: Ints, num_draft: Ints, idx_mapping: Ints) -> tuple[Ints, Ints]:
    """(draft_tokens, num_draft) once the slots of the live rows hold no drafts."""
    draft_tokens, num_draft = draft_tokens.copy(), num_draft.copy()
    for slot in idx_mapping:
        if 0 <= slot < len(num_draft):
            draft_tokens[slot], num_draft[slot] = -1, 0
    return draft_tokens, num_draft


def begin_step(step: Mapping[str, Ints], num_requests: int, block_size: int, max_model_len: int) -> dict[str, Ints]:
    """What the kernel writes, by name. step: its array arguments by name."""
    tables = staged_write(step["block_tables"], step["block_writes"][: step["num_block_writes"][0]])
    mapping, starts = step["idx_mapping"][:num_requests], step["query_start_loc"]
    capacities = len(step["positions"]), len(step["seq_lens"])
    placed = prepare(*capacities, step["num_computed"], mapping, starts, tables, block_size, max_model_len)
    state = (step["history"], step["prefill_len"], step["num_computed"])
    ids, following = prefill_inputs(step["input_ids"], step["next_prefill"], *state, mapping, starts)
    where = (starts, placed[1], step["prefill_len"], step["draft_tokens"], step["cu_num_logits"])
    ids, indices = combine(ids, step["logits_indices"], mapping, step["last_sampled"], *where, 1)
    names = ("positions", "seq_lens", "token_slot", "slot_mapping")
    written = dict(zip(names, placed, strict=True))
    return {**written, "block_tables": tables, "input_ids": ids, "next_prefill": following, "logits_indices": indices}


def end_step(step: Mapping[str, Ints], num_requests: int) -> dict[str, Ints]:
    """What the kernel writes, by name. step: its array arguments by name."""
    mapping, starts = step["idx_mapping"][:num_requests], step["query_start_loc"]
    num_sampled, num_rejected = step["num_sampled"].copy(), step["num_rejected"].copy()
    counts = sampled_rejected(num_sampled, step["seq_lens"], step["cu_num_logits"], mapping, step["prefill_len"])
    num_sampled[:num_requests], num_rejected[:num_requests] = counts
    names = ("num_computed", "total_len", "last_sampled", "history", "finished", "sampled", "max_total_len", "min_total_len")
    state = {name: step[name] for name in (*names, "stop_ids")}
    counted = {"num_sampled": num_sampled, "num_rejected": num_rejected, "idx_mapping": mapping, "query_start_loc": starts}
    written = advance(**state, **counted)
    results = (written["sampled"], written["num_sampled"], step["num_drafts"], written["finished"])
    outcome, sampled = publish(step["outcome"], *results, mapping)
    return {**written, "num_rejected": num_rejected, "outcome": outcome, "sampled": sampled}
