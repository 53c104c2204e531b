"""Log probabilities of emitted tokens against NumPy, under njit and in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import oracle_process as oracle
from kernels.logprobs import LOGPROB_FIELDS, MAX_LOGPROBS, publish_logprobs
from kernels.oracle_dflash import top_candidates
from tests.kernel_cases import Launch, floats, ints, launches, live, untouched

TOKENS = launches((1, 1), ((2, 2), 3), ((5, 3), 8))
VOCAB = 37


def case() -> dict[str, Any]:
    """Row 0 verified two drafts and kept all three tokens, row 1 kept one of two, row 2 asks for nothing, row 3 is inside its
    prompt, row 4 belongs to no slot, row 5 is a pad."""
    logits = 4 * floats(1, 11, VOCAB + 3)
    logits[:, VOCAB:] = 99
    logits[1, [4, 9]] = 30  # two best
    logits[2, 5] = np.nan
    top_ids, top_values = np.zeros((11, MAX_LOGPROBS), np.int32), np.zeros((11, MAX_LOGPROBS), np.float32)
    top_ids, top_values = top_candidates(top_ids, top_values, logits, VOCAB, live(11))
    return {
        "outcome": untouched(1, 6, 3, LOGPROB_FIELDS, dtype=np.int32),
        "logits": logits,
        "vocab_size": VOCAB,
        "top_ids": top_ids,
        "top_values": top_values,
        "sampled": np.array([[7, 9, 0], [3, -1, -1], [1, 2, -1], [-1] * 3, [4, 4, 4], [5, 5, 5]], np.int32),
        "num_sampled": ints(3, 1, 2, 0, 3, 3),
        "num_logprobs": ints(-1, 3, 0, 20),
        "idx_mapping": ints(1, 3, 0, 2, 9, 1),
        "cu_num_logits": ints(0, 3, 5, 7, 8, 11, 11),
        "num_requests": live(5),
    }


@TOKENS
def test_publish_logprobs(launch: Launch) -> None:
    args = case()
    expected = oracle.publish_logprobs(**args)
    held = args["outcome"].copy()
    launch.run(publish_logprobs, *({**args, "outcome": held}[name] for name in publish_logprobs.params))
    floating = [0, *range(2 + MAX_LOGPROBS, LOGPROB_FIELDS)]
    exact = sorted(set(range(LOGPROB_FIELDS)) - set(floating))
    np.testing.assert_array_equal(held[..., exact], expected[..., exact])
    written = expected[..., 1] != -7
    now, then = held[written][:, floating].view(np.float32), expected[written][:, floating].view(np.float32)
    np.testing.assert_allclose(now, then, rtol=1e-5, atol=1e-5)
    assert (held[~written] == -7).all()


@TOKENS
def test_a_row_without_a_number(launch: Launch) -> None:
    args = case() | {"logits": np.full((11, VOCAB), np.nan, np.float32)}
    args["logits"][1] = -np.inf
    held = args["outcome"].copy()
    launch.run(publish_logprobs, *({**args, "outcome": held}[name] for name in publish_logprobs.params))
    assert (held[0, 0, :2, 0].view(np.float32) == -np.inf).all()


@pytest.mark.parametrize(("logits", "token", "rank"), [((1, 4, 2, 4), 1, 2), ((1, 4, 2, 4), 2, 3), ((5, 1), 0, 1)])
def test_rank_of_the_vectors(logits: tuple[int, ...], token: int, rank: int) -> None:
    """VECTORS 6.6 V3."""
    assert oracle.token_logprobs(np.array(logits, np.float32), token)[1] == rank
