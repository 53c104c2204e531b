"""Ragged mixed steps for the tests of the step kernels: every kind of row, permuted slots, poisoned pads and idle slots."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from kernels.argmax import NO_TOKEN
from tests.kernel_cases import live, poisoned

Ints = npt.NDArray[np.int32]

BLOCK_SIZE = 4
HISTORY = 48
STRIDE_PAD = 7777

ROW_KINDS = ("chunk", "chunk-with-drafts", "last-chunk", "tail", "decode", "verify", "at-the-limit")


@dataclass
class Step:
    """One step: `slots` by slot, `rows` by request row (pads behind the live rows), and capacities beyond the live counts."""

    k: int
    slots: dict[str, Ints]
    rows: dict[str, Ints]
    num_requests: int
    num_tokens: int
    num_logits: int
    tokens_capacity: int
    logits_capacity: int
    max_model_len: int
    rng: np.random.Generator

    def live_rows(self, *names: str) -> list[Ints]:
        """Live part of per-row arrays: R entries, R + 1 of prefix sums."""
        prefix = ("query_start_loc", "cu_num_logits")
        return [self.rows[name][: self.num_requests + (name in prefix)] for name in names]

    @property
    def count(self) -> Ints:
        return live(self.num_requests)

    def arguments(self, *names: str) -> dict[str, Any]:
        """Arrays by kernel parameter name."""
        known = {**self.slots, **self.rows, "num_requests": self.count}
        return {name: known[name] for name in names}

    def input_ids(self) -> Ints:
        """Distinct ids that no slot holds; pads poisoned."""
        ids = np.arange(self.tokens_capacity, dtype=np.int32) + 50_000
        return poisoned(ids, self.num_tokens)


def build_step(kinds: list[str], seed: int, k: int, extra_slots: int, pads: int) -> Step:
    """A step with a row of each kind in `kinds`, slots drawn without order from more slots than rows."""
    rng = np.random.default_rng(seed)
    requests = len(kinds)
    num_slots = requests + extra_slots
    mapping = rng.permutation(num_slots)[:requests].astype(np.int32)
    history = (np.arange(num_slots)[:, None] * 1000 + np.arange(HISTORY)[None] + 1).astype(np.int32)
    prefill_len = rng.integers(k + 4, 20, num_slots).astype(np.int32)
    num_computed = np.full(num_slots, -7, np.int32)
    query_lens, num_logits = [], []
    for kind, slot in zip(kinds, mapping, strict=True):
        prompt = int(prefill_len[slot])
        drafts = int(rng.integers(0, k + 1))
        query = 1 + drafts if kind in ("tail", "verify", "at-the-limit") else 1
        if kind == "chunk":
            computed, query, drafts = int(rng.integers(0, 2)), int(rng.integers(1, prompt - 1)), 0
        elif kind == "chunk-with-drafts":
            computed, query = 0, int(rng.integers(drafts + 1, prompt))
        elif kind == "last-chunk":
            computed, drafts = int(rng.integers(0, prompt)), 0
            query = prompt - computed
        elif kind == "tail":
            computed = prompt - 1
        elif kind == "decode":
            computed, drafts = int(rng.integers(prompt, HISTORY - 2 * k - 4)), 0
        elif kind == "verify":
            computed = int(rng.integers(prompt, HISTORY - 2 * k - 4))
        else:  # the last position of the model, with drafts that reach past it
            computed = HISTORY - 1 - int(rng.integers(0, 2))
        num_computed[slot] = computed
        query_lens.append(query)
        num_logits.append(1 + drafts)
    query_start_loc = np.concatenate([[0], np.cumsum(query_lens, dtype=np.int32)]).astype(np.int32)
    cu = np.concatenate([[0], np.cumsum(num_logits, dtype=np.int32)]).astype(np.int32)
    seq_lens = (num_computed[mapping] + query_lens).astype(np.int32)
    total_len = np.full(num_slots, -7, np.int32)
    total_len[mapping] = np.maximum(prefill_len[mapping], num_computed[mapping] + 1)
    draft_tokens = (np.arange(num_slots)[:, None] * 1000 + np.arange(k + 1)[None] + 501).astype(np.int32)
    draft_tokens[rng.random(draft_tokens.shape) < 0.2] = -1
    draft_tokens[:, k:] = STRIDE_PAD
    tables = rng.permutation(num_slots * (HISTORY // BLOCK_SIZE)).reshape(num_slots, -1).astype(np.int32)
    tables[rng.random(tables.shape) < 0.1] = -1
    slots = {
        "num_computed": num_computed,
        "total_len": total_len,
        "last_sampled": np.arange(num_slots, dtype=np.int32) * 1000 + 900,
        "history": history,
        "prefill_len": prefill_len,
        "draft_tokens": draft_tokens,
        "num_draft": np.full(num_slots, -7, np.int32),
        "block_tables": tables,
        "finished": (rng.random(num_slots) < 0.15).astype(np.int32) * rng.integers(1, 3, num_slots).astype(np.int32),
        "max_total_len": np.full(num_slots, HISTORY, np.int32),
        "min_total_len": np.zeros(num_slots, np.int32),
        "stop_ids": np.full((num_slots, 3), -1, np.int32),
        "next_prefill": np.full(num_slots, -7, np.int32),
    }
    rows = {
        "idx_mapping": poisoned(np.concatenate([mapping, np.zeros(pads, np.int32)]), requests),
        "query_start_loc": poisoned(np.concatenate([query_start_loc, np.zeros(pads, np.int32)]), requests + 1),
        "cu_num_logits": poisoned(np.concatenate([cu, np.zeros(pads, np.int32)]), requests + 1),
        "seq_lens": poisoned(np.concatenate([seq_lens, np.zeros(pads, np.int32)]), requests),
    }
    tokens, logits = int(query_start_loc[-1]), int(cu[-1])
    return Step(k, slots, rows, requests, tokens, logits, tokens + 2 * pads, logits + pads, HISTORY, rng)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Steps of 1 to 6 rows, k from 0 to 4."""
    kinds = draw(st.lists(st.sampled_from(ROW_KINDS), min_size=1, max_size=6))
    seed, k = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 4))
    return build_step(kinds, seed, k, extra_slots=draw(st.integers(0, 3)), pads=draw(st.integers(0, 3)))


def all_kinds(seed: int, k: int = 3) -> Step:
    """One fixed step with every kind of row."""
    return build_step([*ROW_KINDS, "verify"], seed, k, extra_slots=2, pads=2)


def partly_accepted(step: Step, input_ids: Ints, logits_indices: Ints) -> Ints:
    """Argmax rows [J] that accept a random number of each row's drafts and then differ, some NO_TOKEN; pads poisoned."""
    argmax = np.full(step.logits_capacity, -7, np.int32)
    (cu,) = step.live_rows("cu_num_logits")
    for base, stop in itertools.pairwise(cu):
        drafts = input_ids[logits_indices[base + 1 : stop]]
        accepted = int(step.rng.integers(0, len(drafts) + 1))
        argmax[base:stop] = step.rng.integers(0, 40, stop - base) + 90_000
        argmax[base : base + accepted] = np.where(drafts[:accepted] >= 0, drafts[:accepted], 3)
        argmax[base:stop][step.rng.random(stop - base) < 0.1] = NO_TOKEN
    return argmax
