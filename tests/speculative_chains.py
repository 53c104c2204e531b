"""Many Markov chains decoded at once by the verification kernels, with a drafter whose distribution is known: what a target model
and a drafter do, small enough to enumerate.

The target's next token depends on the last one, P[last]; drafts come from Q[last], by the kernels' own numbers. Both have as many
rows as tokens. Everything between is the product's, processing aside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.accept import accept_greedy
from kernels.lang import NEG_INF, cuda, f32, i32, kernel
from kernels.process_search import LOWEST_LOGIT
from kernels.random import TILE, draft_gumbel
from kernels.reject import BLOCK, STANDARD, accept_drafts
from kernels.reject_residual import emit_drawn, residual_stripes
from kernels.reject_rows import sum_rows, sum_stripes
from kernels.sample import pick_rows, race_stripes
from tests.kernel_cases import Launch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Q = Literal["one-hot", "sparse"]

TILES = 4
"""Of a stripe; few of many stripes' leading tiles are looked at twice, which is what a race costs on a CPU."""

FIRST_POSITION = 9
"""Position of the token that every chain starts from."""


@kernel(writes=("drafts", "ids", "probs"))
def draw_drafts(drafts, ids, probs, last, position, seed, candidate_ids, candidate_probs, missing):
    """A chain of drafts for each slot, drawn from the candidates of the token before each; from draft `missing[slot]` on, none.

    drafts int32 [N, k], ids int32 [N, k, K], probs float32 [N, k, K] out.   last, position, missing int32 [N]: of the chain's last
    token.   candidate_ids int32 [V, K], candidate_probs float32 [V, K].
    """
    for slot in range(cuda.grid(1), drafts.shape[0], cuda.gridsize(1)):
        previous = i32(last[slot])
        for i in range(drafts.shape[1]):
            best = NEG_INF
            chosen = i32(0)
            for c in range(candidate_ids.shape[1]):
                token = i32(candidate_ids[previous, c])
                q = candidate_probs[previous, c]
                ids[slot, i, c] = token
                probs[slot, i, c] = q
                at = position[slot] + i32(i) + i32(1)
                score = NEG_INF
                if q > f32(0.0):
                    score = f32(math.log(q)) + draft_gumbel(seed[slot, 0], seed[slot, 1], at, i32(i), token)
                if score > best:
                    best = score
                    chosen = token
            drafts[slot, i] = chosen if i < missing[slot] else i32(-1)
            previous = chosen


@dataclass(frozen=True)
class Chains:
    """target: float64 [V, V] rows of probabilities. candidate_ids, candidate_probs [V, K]: of the drafter; one-hot: K = 1.

    top_k, top_p: of every request; 0 and 1 are off. missing: draft from which on there is none, by chain, cyclically.
    """

    target: Floats
    candidate_ids: Ints
    candidate_probs: npt.NDArray[np.float32]
    temperature: float = 1.0
    k: int = 3
    verification: Literal["standard", "block"] = "standard"
    q: Q = "sparse"
    missing: Sequence[int] = (99,)
    top_k: int = 0
    top_p: float = 1.0

    @cached_property
    def logits(self) -> npt.NDArray[np.float32]:
        """What processing leaves behind each last token; one row where it is the same behind all of them."""
        target = self.target[:1] if self.target.strides[0] == 0 else self.target
        kept = filtered(target, self.temperature, self.top_k, self.top_p) > 0
        with np.errstate(divide="ignore"):
            return np.where(kept, np.log(target) / self.temperature, -np.inf).astype(np.float32)

    def run(self, launch: Launch, num_chains: int, length: int, seed: int) -> tuple[Ints, float]:
        """(tokens [num_chains, length] of chains that start at token 0, mean drafts kept a step)."""
        n, rows = num_chains, num_chains * (1 + self.k)
        rng = np.random.default_rng(seed)
        seeds = rng.integers(-(2**31), 2**31, (n, 2)).astype(np.int32)
        tokens = np.full((n, length + self.k + 2), -1, np.int32)
        tokens[:, 0] = 0
        lengths = np.ones(n, np.int32)
        missing = np.resize(np.array(self.missing, np.int32), n)
        kept: list[float] = []
        logits = self.logits
        steps = _Steps(self, n, seeds)
        while lengths.min() <= length:
            last = tokens[np.arange(n), lengths - 1]
            positions = (FIRST_POSITION + lengths - 1).astype(np.int32)
            drafts = steps.draft(launch, last, positions, missing)
            fed = np.concatenate([last[:, None], drafts], axis=1)
            processed = logits[np.maximum(fed, 0) % len(logits)].reshape(rows, -1)
            sampled, num_sampled = steps.verify(launch, np.ascontiguousarray(processed), fed.reshape(-1), positions)
            for chain in np.flatnonzero(lengths <= length):
                count = num_sampled[chain]
                tokens[chain, lengths[chain] : lengths[chain] + count] = sampled[chain, :count]
                lengths[chain] += count
                kept.append(count - 1)
        return tokens[:, 1 : length + 1], float(np.mean(kept))


class _Steps:
    """The launches of a step over arrays of one size."""

    def __init__(self, chains: Chains, n: int, seeds: Ints) -> None:
        self.chains, self.n, self.seeds = chains, n, seeds
        k, vocab_size = chains.k, len(chains.target)
        self.rows = n * (1 + k)
        self.vocab_size = vocab_size
        self.stripes = -(-vocab_size // (TILES * TILE))
        self.slots = np.arange(n, dtype=np.int32)
        self.token_slot = np.repeat(self.slots, 1 + k)
        self.indices = np.arange(self.rows, dtype=np.int32)
        self.cu = (np.arange(n + 1) * (1 + k)).astype(np.int32)
        self.everything = np.full(self.rows, LOWEST_LOGIT, np.float32)
        self.history = np.full((n, 1), -1, np.int32)
        self.temperature = np.full(n, chains.temperature, np.float32)

    def draft(self, launch: Launch, last: Ints, positions: Ints, missing: Ints) -> Ints:
        chains, n = self.chains, self.n
        shape = (n, chains.k, chains.candidate_ids.shape[1])
        drafts = np.full((n, chains.k), -7, np.int32)
        self.ids, self.probs = np.full(shape, -7, np.int32), np.zeros(shape, np.float32)
        results = (drafts, self.ids, self.probs)
        launch.run(draw_drafts, *results, last, positions, self.seeds, chains.candidate_ids, chains.candidate_probs, missing)
        return drafts

    def verify(self, launch: Launch, processed: Any, fed: Ints, first: Ints) -> tuple[Ints, Ints]:
        chains, n, rows = self.chains, self.n, self.rows
        live_rows, live = np.array([rows], np.int32), np.array([n], np.int32)
        positions = (np.repeat(first, 1 + chains.k) + np.tile(np.arange(1 + chains.k), n)).astype(np.int32)
        sampled, num_sampled = np.full((n, 1 + chains.k), -7, np.int32), np.full(n, -7, np.int32)
        num_drafts, picks = np.full(n, -7, np.int32), np.full(rows, -7, np.int32)
        score, column = np.zeros((self.stripes, rows), np.float32), np.zeros((self.stripes, rows), np.int32)
        where = (self.token_slot, positions, self.indices)
        if chains.q == "one-hot":
            of_row = (self.everything, self.temperature, self.seeds, *where)
            launch.run(race_stripes, score, column, processed, *of_row, TILES, live_rows)
            launch.run(pick_rows, picks, score, column, live_rows)
            launch.run(accept_greedy, sampled, num_sampled, num_drafts, picks, fed, self.indices, self.cu, live)
            return sampled, num_sampled
        sums = (np.zeros_like(score), np.zeros_like(score), np.zeros_like(column))
        log_sum, uniforms = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        launch.run(sum_stripes, *sums, processed, self.everything, TILES * TILE, live_rows)
        places = np.tile(np.arange(1 + chains.k, dtype=np.int32), n)
        launch.run(sum_rows, log_sum, picks, uniforms, *sums, self.seeds, *where, places, live_rows)
        accepted, scale, residual = np.zeros(n, np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32)
        decided, drafter = (accepted, scale, residual), (self.ids, self.probs, self.temperature)
        walk = (processed, self.everything, log_sum, picks, uniforms, fed, self.indices, self.cu)
        mode = BLOCK if chains.verification == "block" else STANDARD
        launch.run(accept_drafts, *decided, num_drafts, *walk, *drafter, self.slots, int(mode), live)
        rest = (self.seeds, positions, self.indices, self.cu, self.slots, TILES, live)
        launch.run(residual_stripes, score, column, processed, self.everything, log_sum, *decided, *drafter, *rest)
        emitted = (sampled, num_sampled, accepted, score, column, picks, fed, self.indices, self.cu)
        launch.run(emit_drawn, *emitted, self.history, np.zeros(n, np.int32), self.slots, live)
        return sampled, num_sampled


def filtered(p: Floats, temperature: float, top_k: int, top_p: float) -> Floats:
    """Rows of the exact distribution that processing leaves, by sorting."""
    with np.errstate(divide="ignore"):
        weights = np.exp(np.log(p) / temperature)
    weights /= weights.sum(axis=1, keepdims=True)
    for row in weights if top_k or top_p < 1 else ():
        order = np.argsort(-row, kind="stable")
        if top_k:
            row[order[top_k:]] = 0
            row /= row.sum()
        if top_p < 1:
            before = np.cumsum(row[order]) - row[order]
            row[order[before >= top_p]] = 0
            row /= row.sum()
    return weights


def chi_square(counts: npt.NDArray[Any], expected: Floats) -> tuple[float, int]:
    """(statistic, degrees of freedom); cells of fewer than five expected are pooled. Infinite where the impossible happened."""
    counts, expected = np.ravel(counts).astype(float), np.ravel(expected)
    if counts[expected == 0].sum() > 0:
        return float("inf"), 0
    small = expected < 5
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    counts, expected = counts[keep], expected[keep]
    return float(((counts - expected) ** 2 / expected).sum()), len(expected) - 1


def limit(freedom: int) -> float:
    return freedom + 10 * float(np.sqrt(2 * freedom))

