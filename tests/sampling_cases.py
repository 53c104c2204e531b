"""Ragged batches for the sampling kernels: scattered slots, greedy and sampled requests, drafts good, bad, missing and foreign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

SLOTS = 5
IDX_MAPPING = np.array([3, 0, 4, 1], np.int32)
TEMPERATURE = np.array([1, 0.7, 1, 2, 0], np.float32)
DRAFTS = (3, 0, 2, 3)
"""Drafts of each request: row r of the batch has DRAFTS[r] + 1 logits rows. Request 2 is greedy (slot 4)."""


@dataclass(frozen=True)
class Batch:
    """Arguments of the kernels by name; logits rows J, token rows T and requests R are larger than what is live, and poisoned."""

    args: dict[str, Any]
    num_rows: int
    num_requests: int

    def take(self, *names: str) -> dict[str, Any]:
        return {name: self.args[name] for name in names}

    def kept(self) -> Floats:
        """Live rows of `processed`, -inf where they are below their threshold."""
        processed, threshold = (self.args[name][: self.num_rows] for name in ("processed", "threshold"))
        return np.where(processed >= threshold[:, None], processed, np.float32(-np.inf))


def batch(seed: int, vocab_size: int, k: int = 3, candidates: int = 4) -> Batch:
    """A step of four requests; token rows in another order than logits rows, a pad behind each kind of row."""
    rng = np.random.default_rng([seed, vocab_size])
    cu = np.cumsum([0, *(1 + drafts for drafts in DRAFTS)]).astype(np.int32)
    rows, tokens = int(cu[-1]), int(cu[-1]) + 4
    processed = (2 * rng.standard_normal((rows + 1, vocab_size))).astype(np.float32)
    processed[rng.random(processed.shape) < 0.3] = -np.inf
    processed[rng.random(processed.shape) < 0.02] = np.nan
    processed[rows] = 1e30
    threshold = np.where(np.arange(rows + 1) % 3 == 1, -1.5, -1e30).astype(np.float32)
    threshold[rows] = np.nan
    logits_indices = np.full(rows + 1, 10**6, np.int32)
    logits_indices[:rows] = np.sort(rng.choice(tokens, rows, replace=False))
    token_slot, positions = np.full(tokens, -1, np.int32), np.full(tokens, -7, np.int32)
    input_ids = rng.integers(0, vocab_size, tokens).astype(np.int32)
    draft_ids = np.full((SLOTS, k, candidates), -1, np.int32)
    draft_probs = np.full((SLOTS, k, candidates), np.nan, np.float32)
    for request, slot in enumerate(IDX_MAPPING):
        at = logits_indices[cu[request] : cu[request + 1]]
        token_slot[at] = slot
        positions[at] = 10 * request + 5 + np.arange(len(at))
        for i in range(DRAFTS[request]):
            # The last candidate of a row is missing; the draft is one of the others, or, rarely, none of them.
            ids = rng.choice(vocab_size, candidates - 1, replace=False)
            draft_ids[slot, i, :-1] = ids
            draft_probs[slot, i, :-1] = rng.dirichlet(np.ones(candidates - 1))
            row = cu[request] + i
            likely = ids[np.argmax(np.nan_to_num(processed[row, ids], nan=-np.inf, neginf=-1e9))]
            if TEMPERATURE[slot] == 0:
                likely = np.argmax(np.nan_to_num(processed[row], nan=-np.inf, neginf=-1e9))
            input_ids[at[i + 1]] = likely if rng.random() < 0.8 else rng.choice([-1, ids[0], vocab_size - 1])
    history, total_len = np.full((SLOTS, 9), -1, np.int32), np.array([3, 9, 2, 4, 5], np.int32)
    history[2, 2] = 1  # of a slot that is not in the batch
    seeds = rng.integers(-(2**31), 2**31, (SLOTS, 2)).astype(np.int32)
    args = {
        "processed": processed,
        "threshold": threshold,
        "temperature": TEMPERATURE.copy(),
        "seed": seeds,
        "history": history,
        "total_len": total_len,
        "token_slot": token_slot,
        "positions": positions,
        "logits_indices": logits_indices,
        "local_position": np.append(np.concatenate([np.arange(1 + drafts) for drafts in DRAFTS]), 10**6).astype(np.int32),
        "input_ids": input_ids,
        "cu_num_logits": np.append(cu, np.int32(10**6)),
        "idx_mapping": np.append(IDX_MAPPING, np.int32(-1)),
        "draft_ids": draft_ids,
        "draft_probs": draft_probs,
        "num_rows": np.array([rows], np.int32),
        "num_requests": np.array([len(IDX_MAPPING)], np.int32),
    }
    return Batch(args, rows, len(IDX_MAPPING))
