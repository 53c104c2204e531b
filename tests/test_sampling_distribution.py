"""What is emitted is a sample of the target, whatever drafts: chi-square against the exact distribution of Markov chains.

A statistic may exceed its degrees of freedom by ten standard deviations before it fails: no seed of these tests is near that, and a
damage of a part in a hundred is far beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernel_cases import Launch
from tests.speculative_chains import Chains, chi_square, filtered, limit

Floats = npt.NDArray[np.float64]
CPU = Launch("cpu")
V, LENGTH, CHAINS = 6, 3, 12_000


def target(seed: int = 0, vocab_size: int = V) -> Floats:
    return np.random.default_rng(seed).dirichlet(np.full(vocab_size, 0.6), vocab_size)


def drafter(kind: str, p: Floats) -> dict[str, Any]:
    """Candidates by last token: certain of the most likely, of the least likely; the best four, tempered; everything, wrongly."""
    rng, size = np.random.default_rng(7), len(p)
    if kind.startswith("one-hot"):
        best = p.argmax(axis=1) if kind == "one-hot" else p.argsort(axis=1)[:, -2]
        return {"candidate_ids": best[:, None].astype(np.int32), "candidate_probs": np.ones((size, 1), np.float32)}
    if kind == "sparse":
        ids = np.argsort(-p, axis=1)[:, :4]
        weights = np.take_along_axis(p, ids, axis=1) ** 0.5 + 0.05
    elif kind == "wrong":
        ids, weights = np.tile(np.arange(size), (size, 1)), rng.dirichlet(np.ones(size), size)
    else:
        ids, weights = np.tile(np.arange(size), (size, 1)), p.copy()
    probs = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return {"candidate_ids": ids.astype(np.int32), "candidate_probs": probs}


def chains(kind: str, p: Floats, **settings: Any) -> Chains:
    q = "one-hot" if kind.startswith("one-hot") and settings.get("q") is None else "sparse"
    return Chains(p, **drafter(kind, p), **{"q": q, **settings})


def check_against_enumeration(subject: Chains, launch: Launch = CPU, count: int = CHAINS, seed: int = 1) -> float:
    """Tokens of all positions together, and each position alone; the mean number of drafts kept a step."""
    exact = filtered(subject.target, subject.temperature, subject.top_k, subject.top_p)
    tokens, kept = subject.run(launch, count, LENGTH, seed)
    size = len(exact)
    joint = np.zeros((size,) * LENGTH)
    np.add.at(joint, tuple(tokens.T), 1)
    expected = count * exact[0][:, None, None] * exact[:, :, None] * exact[None, :, :]
    statistic, freedom = chi_square(joint, expected)
    assert statistic < limit(freedom), f"all positions: chi-square {statistic:.0f} at {freedom} degrees of freedom"
    for position in range(LENGTH):
        rest = tuple(axis for axis in range(LENGTH) if axis != position)
        statistic, freedom = chi_square(joint.sum(axis=rest), expected.sum(axis=rest))
        assert statistic < limit(freedom), f"position {position}: chi-square {statistic:.0f} at {freedom} degrees of freedom"
    return kept


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("kind", ["one-hot", "one-hot unlikely", "sparse", "wrong", "exact"])
def test_every_position_has_the_distribution_of_the_target(kind: str, verification: Any, temperature: float) -> None:
    subject = chains(kind, target(), verification=verification, temperature=temperature)
    kept = check_against_enumeration(subject)
    assert kept > 0
    if kind == "exact" and temperature == 1:
        assert kept > 2.999


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_drafts_their_acceptance_and_their_replacement_share_no_noise(verification: Any) -> None:
    """B25: the case with which that was found elsewhere, over chains of several blocks."""
    p, q = np.tile([0.4, 0.3, 0.2, 0.1], (4, 1)), np.tile(np.array([0.1, 0.2, 0.3, 0.4], np.float32), (4, 1))
    ids = np.tile(np.arange(4, dtype=np.int32), (4, 1))
    check_against_enumeration(Chains(p, ids, q, k=1, verification=verification), count=40_000)


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_blocks_behind_one_another_share_no_numbers(verification: Any) -> None:
    """Two tokens, five positions: a block decides by drafts that it does not emit, and the next one draws them anew."""
    count, length = 160_000, 5
    p, q = np.tile([0.6, 0.4], (2, 1)), np.tile(np.array([0.3, 0.7], np.float32), (2, 1))
    subject = Chains(p, np.tile(np.arange(2, dtype=np.int32), (2, 1)), q, verification=verification)
    tokens, _ = subject.run(CPU, count, length, 1)
    counts = np.bincount(tokens @ 2 ** np.arange(length), minlength=2**length)
    ones = np.array([bin(text).count("1") for text in range(2**length)])
    statistic, freedom = chi_square(counts, count * 0.4**ones * 0.6 ** (length - ones))
    assert statistic < limit(freedom), f"chi-square {statistic:.0f} at {freedom} degrees of freedom"


@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("kind", ["one-hot", "sparse", "wrong"])
@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.8}], ids=str)
def test_with_top_k_and_top_p(kind: str, verification: Any, filters: dict[str, Any]) -> None:
    check_against_enumeration(chains(kind, target(3), verification=verification, temperature=0.9, **filters))


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_certainty_as_a_distribution_of_one_candidate(verification: Any) -> None:
    """The same drafts through the rule p > u q with q = 1 and its residual: the other way to the same distribution."""
    p = target(5)
    drawn, kept = {}, {}
    for q in ("one-hot", "sparse"):
        kept[q] = check_against_enumeration(chains("one-hot", p, q=q, verification=verification))
        drawn[q] = q
    assert kept["sparse"] == pytest.approx(kept["one-hot"], rel=0.03)


@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("kind", ["one-hot", "sparse"])
def test_missing_drafts_leave_the_distribution_alone(kind: str, verification: Any) -> None:
    """M7: none, one, two or all of three drafts are there."""
    check_against_enumeration(chains(kind, target(), verification=verification, missing=(0, 1, 2, 3)))


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_a_missing_draft_ends_the_block(verification: Any) -> None:
    """M6, q = p: the first draft is always kept, the second is missing, the third is there and does not count."""
    subject = chains("exact", target(), verification=verification, missing=(1,))
    tokens, kept = subject.run(CPU, 2000, 2, 3)
    assert 0.9 < kept <= 1
    assert tokens.min() >= 0
    assert tokens.max() < V


@pytest.mark.parametrize("kind", ["sparse", "wrong"])
def test_block_verification_keeps_at_least_as_many(kind: str) -> None:
    """On the same 40,000 chains; where the drafter is wrong it keeps more by far more than the noise."""
    p = target(11)
    kept = {}
    for verification in ("standard", "block"):
        subject = chains(kind, p, verification=verification, k=5)
        _, kept[verification] = subject.run(CPU, 40_000, LENGTH, 2)
    assert kept["block"] > kept["standard"] + 0.01


@pytest.mark.parametrize(
    ("kind", "verification", "temperature"),
    [("one-hot", "standard", 0.6), ("sparse", "standard", 1.0), ("sparse", "block", 0.6)],
)
def test_a_vocabulary_of_4096_by_40960_draws(kind: str, verification: Any, temperature: float) -> None:
    """The first token behind a start: four tiles of the vocabulary, drafts among the likely. One-hot drafts are verified alike in
    both modes."""
    size, draws = 4096, 40_960
    rng = np.random.default_rng(4)
    row = np.exp(2 * rng.standard_normal(size))
    p = np.broadcast_to(row / row.sum(), (size, size))
    subject = Chains(
        p,
        candidate_ids=np.tile(np.argsort(-row)[: 1 if kind == "one-hot" else 8], (size, 1)).astype(np.int32),
        candidate_probs=np.full((size, 1 if kind == "one-hot" else 8), 1 if kind == "one-hot" else 1 / 8, np.float32),
        temperature=temperature,
        k=1,
        verification=verification,
        q="one-hot" if kind == "one-hot" else "sparse",
    )
    exact = filtered(p[:1], temperature, 0, 1.0)[0]
    counts = np.zeros(size)
    for part in range(20):
        tokens, _ = subject.run(CPU, draws // 20, 1, 100 + part)
        np.add.at(counts, tokens[:, 0], 1)
    statistic, freedom = chi_square(counts, draws * exact)
    assert freedom > 400
    assert statistic < limit(freedom)
