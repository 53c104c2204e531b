"""A drafter with a distribution, in any engine: drafts are drawn from a table of candidates by the token before each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphs.arrays import SlotState, StepArrays
from graphs.key import GraphKey
from graphs.launch import Array, Launcher
from graphs.sampling_state import DraftDistribution
from kernels.lang import NEG_INF, cuda, f32, i32, kernel
from kernels.random import draft_gumbel
from runtime.speculators.proposers import Speculation, Speculator


@kernel(writes=("draft_tokens", "num_draft", "q_ids", "q_probs"))
def propose_candidates(
    draft_tokens,
    num_draft,
    q_ids,
    q_probs,
    last_sampled,
    total_len,
    finished,
    seed,
    temperature,
    candidate_ids,
    candidate_logs,
    idx_mapping,
    num_sampled,
    num_requests,
):
    """Drafts of the slots that have just committed tokens. candidate_ids int32 [V, K], candidate_logs float32 [V, K]: log q."""
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        slot = i32(idx_mapping[row])
        drafting = num_sampled[row] > i32(0) and finished[slot] == i32(0)
        before = i32(last_sampled[slot])
        for i in range(draft_tokens.shape[1]):
            best = NEG_INF
            chosen = i32(-1)
            for c in range(candidate_ids.shape[1]):
                token = i32(candidate_ids[before, c])
                score = candidate_logs[before, c]
                q_ids[slot, i, c] = token
                q_probs[slot, i, c] = f32(2.718281828459045**score)
                if temperature[slot] > f32(0.0):
                    score += draft_gumbel(seed[slot, 0], seed[slot, 1], total_len[slot] + i32(i), i32(i), token)
                if score > best:
                    best = score
                    chosen = token
            draft_tokens[slot, i] = chosen if drafting else i32(-1)
            before = chosen
        num_draft[slot] = i32(draft_tokens.shape[1]) if drafting else i32(0)


class CandidateProposer:
    """Records propose_candidates."""

    appends_context = False
    backlog = None
    works_beside = False

    def __init__(self, ids: Array, logs: Array, distribution: DraftDistribution) -> None:
        self._ids, self._logs, self._distribution = ids, logs, distribution

    def record(self, launch: Launcher, key: GraphKey, state: SlotState, step: StepArrays) -> None:
        rows, drafts = key.num_requests, self._distribution
        launch.launch(
            propose_candidates,
            1,
            32,
            state.draft_tokens,
            state.num_draft,
            drafts.ids,
            drafts.probs,
            state.last_sampled,
            state.total_len,
            state.finished,
            state.sampling.seed,
            state.sampling.temperature,
            self._ids,
            self._logs,
            step.inputs.idx_mapping[:rows],
            step.num_sampled[:rows],
            step.inputs.num_requests,
        )


@contextmanager
def drafts_from(ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float32]) -> Iterator[None]:
    """Engines that are opened inside speculate with candidates ids [V, K] of probabilities probs [V, K]."""

    def build(self: Speculator, device: Any, target: Any, sizes: Any, *args: Any, **kwargs: Any) -> Speculation:
        shape = (sizes.max_num_seqs, sizes.num_speculative_tokens, ids.shape[1])
        distribution = DraftDistribution(device.array("q_ids", shape, np.int32), device.array("q_probs", shape, np.float32))
        device.upload(distribution.ids, np.full(shape, -1, np.int32))
        device.upload(distribution.probs, np.zeros(shape, np.float32))
        tables = device.array("candidate_ids", ids.shape, np.int32), device.array("candidate_logs", ids.shape, np.float32)
        device.upload(tables[0], ids)
        device.upload(tables[1], np.log(probs))
        return Speculation(CandidateProposer(*tables, distribution), distribution=distribution)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speculator, "build", build)
        yield
