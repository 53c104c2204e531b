"""What each kernel of logits processing and of logprobs means, in plain NumPy. Tests compare against it; nothing at run time does.

Every function returns what the kernel's output arrays hold afterwards; inputs are never changed. Sums are float64, and thresholds
are found by sorting.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.int32]"

IN_PROMPT = 1 << 30


def begin_counts(counts: Integers, record: Integers, tokens: Integers) -> Integers:
    result, slot, known, prompt_len = counts.copy(), record[0], record[1], record[5]
    if not 0 <= slot < len(counts):
        return result
    result[slot] = 0
    for place, token in enumerate(tokens[:known]):
        if 0 <= token < counts.shape[1]:
            result[slot, token] = IN_PROMPT if place < prompt_len else result[slot, token] + 1
    return result


def penalised(logits: Floats, counts: Integers, repetition: float, presence: float, frequency: float) -> Floats:
    """Logits of one row [V] under the counts of its slot."""
    emitted = counts & (IN_PROMPT - 1)
    repeated = np.where(logits > 0, logits / np.float32(repetition), logits * np.float32(repetition))
    result = np.where(counts != 0, repeated, logits)
    return np.where(emitted > 0, result - frequency * emitted - presence, result).astype(np.float32)


def drafts_before(row: int, place: int, input_ids: Integers, logits_indices: Integers) -> list[int]:
    """Drafts of the block in front of logits row `row`, oldest first."""
    return [int(input_ids[logits_indices[j]]) for j in range(row - place + 1, row + 1)]


def stripe_maxima(processed: Floats, best: Floats, rows: list[int]) -> Floats:
    """best [S, J] with the columns of `rows` found anew."""
    result, width = best.copy(), -(-processed.shape[1] // len(best))
    for row in rows:
        for stripe in range(len(best)):
            result[stripe, row] = processed[row, stripe * width : (stripe + 1) * width].max(initial=-np.inf)
    return result


def adjust_logits(
    processed: Floats,
    best: Floats,
    logits: Floats,
    temperature: Floats,
    repetition: Floats,
    presence: Floats,
    frequency: Floats,
    counts: Integers,
    num_bias: Integers,
    bias_ids: Integers,
    bias_values: Floats,
    restricted: Integers,
    allowed: Integers,
    slot_of_row: Integers,
    local_position: Integers,
    input_ids: Integers,
    logits_indices: Integers,
    num_rows: Integers,
) -> tuple[Floats, Floats]:
    """(processed, best)."""
    result, vocab = processed.copy(), processed.shape[1]
    changed = []
    for row in range(num_rows[0]):
        slot = slot_of_row[row]
        if not 0 <= slot < len(temperature):
            continue
        changed.append(row)
        values = logits[row, :vocab].astype(np.float32).copy()
        for b in range(num_bias[slot]):
            values[bias_ids[slot, b]] += bias_values[slot, b]
        if (repetition[slot], presence[slot], frequency[slot]) != (1, 0, 0):
            seen = counts[slot].copy()
            for draft in drafts_before(row, local_position[row], input_ids, logits_indices):
                if 0 <= draft < vocab:
                    seen[draft] += 1
            values = penalised(values, seen, repetition[slot], presence[slot], frequency[slot])
        values /= temperature[slot] or np.float32(1)
        values = np.where(values >= -1e30, np.minimum(values, np.float32(1e30)), -np.inf)
        if restricted[slot]:
            bits = np.unpackbits(allowed[slot].view(np.uint8), bitorder="little")[:vocab]
            values = np.where(bits == 1, values, -np.inf)
        result[row] = values
    return result, stripe_maxima(result, best, changed)


def forbid_tokens(
    processed: Floats,
    best: Floats,
    history: Integers,
    total_len: Integers,
    min_total_len: Integers,
    stop_ids: Integers,
    num_bad: Integers,
    bad_starts: Integers,
    bad_tokens: Integers,
    slot_of_row: Integers,
    local_position: Integers,
    input_ids: Integers,
    logits_indices: Integers,
    num_rows: Integers,
) -> tuple[Floats, Floats]:
    """(processed, best)."""
    result, vocab = processed.copy(), processed.shape[1]
    changed = []
    for row in range(num_rows[0]):
        slot, place = slot_of_row[row], local_position[row]
        if not 0 <= slot < len(history):
            continue
        before = history[slot, : total_len[slot]].tolist() + drafts_before(row, place, input_ids, logits_indices)
        forbidden = [] if len(before) >= min_total_len[slot] else stop_ids[slot].tolist()
        for m in range(num_bad[slot]):
            word = bad_tokens[slot, bad_starts[slot, m] : bad_starts[slot, m + 1]].tolist()
            if before[len(before) - len(word) + 1 :] == word[:-1] and len(before) >= len(word) - 1:
                forbidden.append(word[-1])
        for token in forbidden:
            if 0 <= token < vocab:
                result[row, token] = -np.inf
                changed.append(row)
    return result, stripe_maxima(result, best, changed)


def filter_logits(
    processed: Floats,
    temperature: Floats,
    top_k: Integers,
    top_p: Floats,
    min_p: Floats,
    slot_of_row: Integers,
    num_rows: Integers,
) -> Floats:
    result = processed.copy()
    for row in range(num_rows[0]):
        slot = slot_of_row[row]
        if 0 <= slot < len(temperature) and temperature[slot] > 0:
            result[row] = filtered(processed[row], int(top_k[slot]), float(top_p[slot]), float(min_p[slot]))
    return result


def filtered(logits: Floats, top_k: int, top_p: float, min_p: float) -> Floats:
    """One row after min_p, top_k and top_p; equals of the last token kept stay."""
    values = logits.astype(np.float64)
    best = values.max()
    if best == -np.inf:
        return logits.copy()
    if min_p > 0:
        values[values < np.float32(np.float32(best) + np.log(np.float32(min_p)))] = -np.inf
    if 0 < top_k < len(values):
        values[values < np.sort(values)[-top_k]] = -np.inf
    if top_p < 1:
        weights = np.exp(values - best)
        order = np.argsort(-values, kind="stable")
        above = np.cumsum(weights[order]) - weights[order]
        last = np.flatnonzero(above < top_p * weights.sum())[-1]
        values[values < values[order[last]]] = -np.inf
    return np.where(values == -np.inf, np.float32(-np.inf), logits)


def publish_logprobs(
    outcome: Integers,
    logits: Floats,
    vocab_size: int,
    top_ids: Integers,
    top_values: Floats,
    sampled: Integers,
    num_sampled: Integers,
    num_logprobs: Integers,
    idx_mapping: Integers,
    cu_num_logits: Integers,
    num_requests: Integers,
) -> Integers:
    result, top = outcome.copy(), top_ids.shape[1]
    for row in range(num_requests[0]):
        slot = idx_mapping[row]
        wanted = num_logprobs[slot] if 0 <= slot < len(num_logprobs) else -1
        for place in range(num_sampled[row] if wanted >= 0 else 0):
            line = cu_num_logits[row] + place
            chosen, rank, logprobs = token_logprobs(logits[line, :vocab_size], int(sampled[row, place]))
            told = [np.float32(chosen).view(np.int32), rank]
            ids = [top_ids[line, k] if k < wanted else -1 for k in range(top)]
            values = [np.float32(logprobs[top_ids[line, k]]).view(np.int32) if k < wanted else 0 for k in range(top)]
            result[0, row, place] = [*told, *ids, *values]
    return result


def token_logprobs(logits: Floats, token: int) -> tuple[float, int, npt.NDArray[np.float64]]:
    """Log probability and rank of `token`, and the log probabilities of all [V]; a NaN is -inf."""
    values = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    best = values.max()
    logprobs = values - (best + np.log(np.exp(values - best).sum()) if best > -np.inf else 0.0)
    return float(logprobs[token]), int((logits >= logits[token]).sum()), logprobs


def admit_lists(rows: list[npt.NDArray[Any]], slot: int, staged: list[Integers]) -> list[npt.NDArray[Any]]:
    """bias_ids, bias_values, bad_starts, bad_tokens, allowed [N, ...] with the row of one slot replaced."""
    results = [row.copy() for row in rows]
    if 0 <= slot < len(rows[0]):
        for result, values in zip(results, staged, strict=True):
            result[slot] = values.view(result.dtype)
    return results


BUCKETS = 2048


def buckets_of(logits: Floats, largest: np.float32) -> Integers:
    """Bucket of each logit of a row; -1 of -inf."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.minimum((largest - logits) * np.float32(64), np.float32(BUCKETS - 1))
    return np.where(logits > -np.inf, scaled, -1).astype(np.int32)


def count_logits(
    histogram: Integers,
    processed: Floats,
    best: Floats,
    temperature: Floats,
    top_k: Integers,
    top_p: Floats,
    slot_of_row: Integers,
    num_rows: Integers,
) -> Integers:
    """The losses are rounded as float64 rounds them: a kernel may be off by one for each logit."""
    result = histogram.copy()
    for row in range(num_rows[0]):
        slot = slot_of_row[row]
        if 0 <= slot < len(temperature) and temperature[slot] > 0 and (top_k[slot] > 0 or top_p[slot] < 1):
            largest = best[:, row].max()
            buckets = buckets_of(processed[row], largest)
            for bucket, logit in zip(buckets, processed[row], strict=True):
                if bucket >= 0:
                    result[row, 0, bucket] += 1
                if 0 <= bucket < BUCKETS - 1 and top_p[slot] < 1:
                    beyond = (float(largest) - float(logit)) - bucket / 64
                    result[row, 1, bucket] += round(-np.expm1(-beyond) * 2**19)
    return result


def find_buckets(row: Floats, top_k: int, top_p: float, min_p: float) -> tuple[int, int, int]:
    """Of one row of processed logits: the bucket in which top_k ends, the one in which min_p and top_k end, and the one in which
    all three end; -1 where that is not asked for."""
    buckets = buckets_of(row, row.max())

    def last(k: int, p: float, least: float) -> int:
        return int(buckets[filtered(row, k, p, least) > -np.inf].max())

    of_k = last(top_k, 1, 0) if 0 < top_k < np.count_nonzero(buckets >= 0) else -1
    floor = row.max() + np.float32(np.log(np.float32(min_p))) if min_p > 0 else -np.inf
    of_min_p = int(buckets_of(np.array([floor], np.float32), row.max())[0]) if min_p > 0 else -1
    first = min((bucket for bucket in (of_k, of_min_p) if bucket >= 0), default=-1)
    return of_k, first, last(top_k, top_p, min_p) if top_p < 1 else -1


def list_members(row: Floats, listed: set[int]) -> Floats:
    """Logits of one row in the buckets `listed`, sorted."""
    return np.sort(row[np.isin(buckets_of(row, row.max()), sorted(listed))])


def rank_members(row: Floats, top_k: int, top_p: float, min_p: float) -> np.float32:
    """The smallest logit of one row that min_p, top_k and top_p keep."""
    kept: np.float32 = row[filtered(row, top_k, top_p, min_p) > -np.inf].min()
    return kept
