"""Plain NumPy meaning of random numbers, sampling and stochastic verification. Tests compare against it; nothing else imports it.

Random words are exact; what follows from them is computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.random import QUARTER, ROLE_ACCEPT, ROLE_DRAFT, ROLE_TOKEN, TILE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
NO_COLUMN = 2**31 - 1
_MASK = 0xFFFFFFFF


def philox(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of counters [n, 4] (values below 2**32): words [n, 4]."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    mask, high = np.uint64(_MASK), np.uint64(32)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (second >> high) ^ c1 ^ np.uint64(k0),
            second & mask,
            (first >> high) ^ c3 ^ np.uint64(k1),
            first & mask,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def open_uniform(high: Any, low: Any) -> Floats:
    return np.minimum((np.asarray(high, np.float64) + np.asarray(low, np.float64) / 2**32) / 2**32 + 2.0**-65, 1 - 2.0**-24)


def _key(seed: tuple[int, int]) -> tuple[int, int]:
    return int(seed[0]) & _MASK, int(seed[1]) & _MASK


def uniform(seed: tuple[int, int], position: int, role: int, index: int) -> float:
    """kernels.random.uniform."""
    words = philox(np.array([[index, position, role, 0]], np.uint64), _key(seed))[0]
    return float(open_uniform(words[0], words[1]))


def column_gumbels(seed: tuple[int, int], position: int, role: int, vocab_size: int) -> Floats:
    """[V]: the Gumbel variate of each column."""
    columns = np.arange(vocab_size)
    calls = columns // TILE * QUARTER + columns % QUARTER
    which = columns % TILE // QUARTER
    words = []
    for part in (0, 1):
        counter = np.stack([calls, np.full_like(calls, position), np.full_like(calls, role), np.full_like(calls, part)], axis=1)
        words.append(philox(counter.astype(np.uint64), _key(seed))[columns, which])
    return -np.log(-np.log1p(-open_uniform(*words)))


def draft_gumbels(seed: tuple[int, int], position: int, place: int, vocab_size: int) -> Floats:
    """[V]: kernels.random.draft_gumbel."""
    return column_gumbels(seed, position - place - 1, ROLE_DRAFT + place, vocab_size)


def accept_uniform(seed: tuple[int, int], position: int, place: int) -> float:
    return uniform(seed, position, ROLE_ACCEPT, position - place - 1)


def admit_sampling(state: dict[str, npt.NDArray[Any]], slot: int, record: Ints) -> dict[str, npt.NDArray[Any]]:
    """The state with one slot rewritten from a sampling record."""
    state = {name: values.copy() for name, values in state.items()}
    if 0 <= slot < len(state["temperature"]):
        floats = record.view(np.float32)
        state["seed"][slot] = record[0:2]
        state["temperature"][slot], state["top_k"][slot] = floats[2], record[3]
        state["top_p"][slot], state["min_p"][slot] = floats[4], floats[5]
        state["repetition"][slot], state["presence"][slot], state["frequency"][slot] = floats[6:9]
        state["num_logprobs"][slot], state["num_bias"][slot], state["num_bad"][slot], state["restricted"][slot] = record[9:13]
    return state


def scores(
    processed: npt.NDArray[np.float32],
    temperature: npt.NDArray[np.float32],
    seed: Ints,
    token_slot: Ints,
    positions: Ints,
    logits_indices: Ints,
) -> Floats:
    """[J, V]: logit + noise; NaN reads as -inf."""
    out = np.where(np.isnan(processed), -np.inf, processed).astype(np.float64)
    for row, at in enumerate(logits_indices):
        slot = int(token_slot[at])
        if slot >= 0 and temperature[slot] > 0:
            out[row] += column_gumbels(tuple(seed[slot]), int(positions[at]) + 1, ROLE_TOKEN, out.shape[1])
    return out


def race_stripes(stripes: int, tiles_per_stripe: int, of_rows: Floats) -> tuple[Floats, Ints]:
    """(best_score, best_column) [S, J] of `scores`."""
    rows = len(of_rows)
    best_score = np.full((stripes, rows), -np.inf)
    best_column = np.full((stripes, rows), NO_COLUMN, np.int32)
    width = tiles_per_stripe * TILE
    for stripe in range(stripes):
        part = of_rows[:, stripe * width : (stripe + 1) * width]
        if part.shape[1]:
            best_score[stripe] = part.max(axis=1)
            found = best_score[stripe] > -np.inf
            best_column[stripe, found] = (part.argmax(axis=1) + stripe * width)[found]
    return best_score, best_column


def pick_rows(best_score: Floats, best_column: Ints) -> Ints:
    """picks [J]; -1 for a row of nothing."""
    nothing = best_score.max(axis=0) == -np.inf
    best = best_column[best_score.argmax(axis=0), np.arange(best_score.shape[1])]
    return np.where(nothing, -1, best).astype(np.int32)


def sum_stripes(stripes: int, width: int, processed: npt.NDArray[np.float32]) -> tuple[Floats, Floats, Ints]:
    """(stripe_max, stripe_sum, stripe_column) [S, J]."""
    rows = len(processed)
    values = np.where(np.isnan(processed), -np.inf, processed).astype(np.float64)
    largest, total = np.full((stripes, rows), -np.inf), np.zeros((stripes, rows))
    column = np.full((stripes, rows), NO_COLUMN, np.int32)
    for stripe in range(stripes):
        part = values[:, stripe * width : (stripe + 1) * width]
        for row in range(rows):
            if part.shape[1] and part[row].max() > -np.inf:
                largest[stripe, row] = part[row].max()
                total[stripe, row] = np.exp(part[row] - part[row].max()).sum()
                column[stripe, row] = part[row].argmax() + stripe * width
    return largest, total, column


def sum_rows(
    processed: npt.NDArray[np.float32],
    seed: Ints,
    token_slot: Ints,
    positions: Ints,
    logits_indices: Ints,
    local_position: Ints,
) -> tuple[Floats, Ints, Floats]:
    """(log_sum, row_argmax, uniforms) [J], from whole rows; row_argmax is -1 of a row of nothing."""
    values = np.where(np.isnan(processed), -np.inf, processed).astype(np.float64)
    largest = values.max(axis=1)
    nothing = largest == -np.inf
    shift = np.where(nothing, 0, largest)
    with np.errstate(divide="ignore"):
        log_sum = shift + np.log(np.exp(values - shift[:, None]).sum(axis=1))
    draws = [
        accept_uniform(tuple(seed[max(token_slot[at], 0)]), int(positions[at]) + 1, int(place))
        for at, place in zip(logits_indices, local_position, strict=True)
    ]
    return log_sum, np.where(nothing, -1, values.argmax(axis=1)).astype(np.int32), np.array(draws)


def probabilities(processed: npt.NDArray[np.float32]) -> Floats:
    """Softmax [J, V]; a row of nothing is NaN."""
    values = np.where(np.isnan(processed), -np.inf, processed).astype(np.float64)
    with np.errstate(invalid="ignore"):
        weights = np.exp(values - values.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def dense(ids: Ints, probs: npt.NDArray[np.float32], vocab_size: int) -> Floats:
    """[V] of a drafter's candidates."""
    q = np.zeros(vocab_size)
    inside = ids >= 0
    q[ids[inside]] = probs[inside]
    return q


def accept(p: Floats, q: Floats, drafts: list[int], uniforms: Floats, block: bool) -> tuple[int, float]:
    """(drafts kept, s of the residual) of one request: p [k + 1, V], q [k, V], valid drafts alone. From the papers' formulas."""
    if not block:
        for i, token in enumerate(drafts):
            if not p[i, token] > uniforms[i] * q[i, token]:
                return i, 1.0
        return len(drafts), 1.0
    kept, accepted, factor = 1.0, 0, 1.0
    for i, token in enumerate(drafts):
        kept = min(kept * p[i, token] / q[i, token], 1.0)
        ends = kept
        if i + 1 < len(drafts):
            mass = np.maximum(kept * p[i + 1] - q[i + 1], 0).sum()
            ends = mass / (mass + 1 - kept) if mass > 0 else 0.0
        if uniforms[i] < ends:
            accepted, factor = i + 1, kept
    return accepted, factor


def accept_drafts(
    processed: npt.NDArray[np.float32],
    uniforms: Floats,
    input_ids: Ints,
    logits_indices: Ints,
    cu_num_logits: Ints,
    draft_ids: Ints,
    draft_probs: npt.NDArray[np.float32],
    temperature: npt.NDArray[np.float32],
    idx_mapping: Ints,
    verification: int,
) -> tuple[Ints, Floats, Ints, Ints]:
    """(num_accepted, scale, residual, num_drafts) [R]."""
    vocab_size, p = processed.shape[1], probabilities(processed)
    values = np.where(np.isnan(processed), -np.inf, processed)
    argmax = np.where(values.max(axis=1) > -np.inf, values.argmax(axis=1), -1)
    results = []
    for row, slot in enumerate(idx_mapping):
        base, stop = int(cu_num_logits[row]), int(cu_num_logits[row + 1])
        drafts = [int(input_ids[at]) for at in logits_indices[base + 1 : stop]]
        drafted = sum(token >= 0 for token in drafts)
        if stop == base:
            results.append((-1, 1.0, 0, 0))
        elif not temperature[slot] > 0:
            agreeing = [token == argmax[base + i] and token >= 0 for i, token in enumerate(drafts)]
            results.append((agreeing.index(False) if False in agreeing else len(drafts), 1.0, 0, drafted))
        else:
            q = np.array([dense(draft_ids[slot, i], draft_probs[slot, i], vocab_size) for i in range(len(drafts))])
            q = q.reshape(len(drafts), vocab_size)
            valid = 0
            while valid < len(drafts) and 0 <= drafts[valid] < vocab_size and q[valid, drafts[valid]] > 0:
                valid += 1
            accepted, factor = accept(p[base:stop], q, drafts[:valid], uniforms[base:stop], bool(verification))
            results.append((accepted, factor, int(accepted < valid), drafted))
    accepted_of, scale, residual, num_drafts = zip(*results, strict=True)
    ints = (np.array(values, np.int32) for values in (accepted_of, residual, num_drafts))
    num_accepted, with_residual, drafted_of = ints
    return num_accepted, np.array(scale), with_residual, drafted_of


def residual_logits(processed: npt.NDArray[np.float32], q: Floats, scale: float) -> Floats:
    """[V] of one row: log(max(p - q / scale, 0)) + log_sum."""
    values = np.where(np.isnan(processed), -np.inf, processed).astype(np.float64)
    largest = values.max()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_sum = largest + np.log(np.exp(values - largest).sum())
        share = np.where(q > 0, q / scale * np.exp(log_sum - values), 0)
        return np.where(share < 1, values + np.log1p(-np.minimum(share, 1)), -np.inf)


def emit_drawn(
    width: int, num_accepted: Ints, tokens: Ints, row_argmax: Ints, input_ids: Ints, logits_indices: Ints, cu_num_logits: Ints
) -> Any:
    """(sampled [R, W], num_sampled [R]) from the drawn token of each request; -1 for rows of nothing."""
    sampled = np.full((len(num_accepted), width), -1, np.int32)
    for row, accepted in enumerate(num_accepted):
        base = int(cu_num_logits[row])
        if accepted >= 0:
            drafts = input_ids[logits_indices[base + 1 : base + 1 + accepted]]
            sampled[row, :accepted] = np.where(row_argmax[base : base + accepted] < 0, -1, drafts)
            sampled[row, accepted] = tokens[row]
    return sampled, (num_accepted + 1).astype(np.int32)
