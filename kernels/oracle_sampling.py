"""Plain NumPy meaning of random numbers, sampling and stochastic verification. Tests compare against it; nothing else imports it.

Random words are exact; what follows from them is computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.random import QUARTER, ROLE_TOKEN, TILE

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


def admit_sampling(state: dict[str, npt.NDArray[Any]], slot: int, record: Ints) -> dict[str, npt.NDArray[Any]]:
    """The state with one slot rewritten from a sampling record."""
    state = {name: values.copy() for name, values in state.items()}
    if 0 <= slot < len(state["temperature"]):
        floats = record.view(np.float32)
        state["seed"][slot] = record[0:2]
        state["temperature"][slot], state["top_k"][slot] = floats[2], record[3]
        state["top_p"][slot], state["min_p"][slot] = floats[4], floats[5]
    return state


def scale_logits(
    vocab_size: int, logits: npt.NDArray[Any], temperature: npt.NDArray[np.float32], token_slot: Ints, logits_indices: Ints
) -> npt.NDArray[np.float32]:
    slots = token_slot[logits_indices]
    divisor = np.where(temperature[slots] > 0, temperature[slots], 1).astype(np.float32)
    return logits[:, :vocab_size].astype(np.float32) / divisor[:, None]


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
    rows, vocab_size = of_rows.shape
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
