"""Sampling with a drafter: texts are distributed as the target alone would write them, whatever is drafted and accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.sampling import SamplingParams
from tests.reference_forward import reference_logits
from tests.test_dflash_engine import SHAPES
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import write_tiny_drafter
from tests.tiny_engine import check_idle, open_tiny

TARGET = TinyShape(seed=3, num_layers=3, attention_scale=0.3, num_likely_ids=4)
PROMPT = [7, 11, 5]
TEMPERATURE = 0.7
REQUESTS = 1500
LENGTH = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), TARGET)


def cells(model: TinyModel) -> tuple[list[int], dict[tuple[int, ...], float]]:
    """The likeliest ids, and the probability of each text of LENGTH tokens, every other id counted as -1.

    What stands behind an unlikely id is not told apart: its text ends there.
    """
    kept: list[int] = []
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: Counter[tuple[int, ...]] = Counter()
        for text, probability in texts.items():
            if text and text[-1] == -1:
                grown[text] += probability
                continue
            logits = reference_logits(model.config, model.tensors, [*PROMPT, *text])[-1].astype(np.float64) / TEMPERATURE
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            if not kept:
                kept = np.argsort(-shares)[:4].tolist()
            for token in kept:
                grown[(*text, token)] += probability * shares[token]
            grown[(*text, -1)] += probability * (1 - shares[kept].sum())
        texts = dict(grown)
    return kept, texts


def cell_of(tokens: tuple[int, ...], kept: list[int]) -> tuple[int, ...]:
    cell: tuple[int, ...] = ()
    for token in tokens:
        cell = (*cell, token if token in kept else -1)
        if cell[-1] == -1:
            break
    return cell


@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("name", ["v2", "v1"])
def test_texts_are_distributed_as_the_target_writes_them(
    model: TinyModel, tmp_path: Path, name: str, verification: str
) -> None:
    """1,500 seeds against exact probabilities; chi square over the cells that are expected at least five times."""
    if name == "v1" and verification == "block":
        pytest.skip("DFlash is certain of its drafts: one rule for both")
    drafter = write_tiny_drafter(tmp_path / name, TARGET, SHAPES[name])
    settings: dict[str, Any] = {
        "speculator__method": "dflash",
        "speculator__draft_source": str(drafter.path),
        "speculator__verification": verification,
        "scheduler__max_num_seqs": 16,
        "scheduler__max_num_batched_tokens": 64,
    }
    kept, expected = cells(model)
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=LENGTH, ignore_eos=True, seed=1000 + i) for i in range(REQUESTS)
    ]
    with open_tiny(model.path, k=3, schedule="eager", poison=False, **settings) as engine:
        outputs = engine.generate([PROMPT] * REQUESTS, params)
        accepted = engine.scheduler.acceptance.num_accepted_tokens
        check_idle(engine)
    assert accepted > REQUESTS / 20, "without acceptance nothing is shown"
    counts = Counter(cell_of(output.token_ids, kept) for output in outputs)
    assert set(counts) <= set(expected)
    likely = [cell for cell, probability in expected.items() if probability * REQUESTS >= 5]
    rest = 1 - sum(expected[cell] for cell in likely)
    pairs = [(counts[cell], expected[cell] * REQUESTS) for cell in likely]
    pairs.append((REQUESTS - sum(count for count, _ in pairs), rest * REQUESTS))
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in pairs if wanted > 1)
    freedom = len(pairs) - 1
    assert freedom >= 8, "too few cells to tell distributions apart: choose another temperature"
    assert statistic < freedom + 5 * np.sqrt(2 * freedom), f"chi square {statistic:.1f} with {freedom} degrees of freedom"


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_a_preempted_text_is_the_text(model: TinyModel, tmp_path: Path, verification: str) -> None:
    """The drafter's context is built anew from the first token, and the last token that was returned is emitted once more: with it,
    its penalties, and its log probabilities nothing is told twice, and every block begins where it would have begun."""
    drafter = write_tiny_drafter(tmp_path / "v2", TARGET, SHAPES["v2"])
    settings: dict[str, Any] = {
        "speculator__method": "dflash",
        "speculator__draft_source": str(drafter.path),
        "speculator__verification": verification,
        "numerics": "batch_invariant",
        "scheduler__max_num_seqs": 4,
        "scheduler__max_num_batched_tokens": 64,
    }
    asked = SamplingParams(temperature=TEMPERATURE, max_tokens=30, ignore_eos=True, logprobs=1, frequency_penalty=0.3, min_tokens=3)
    params = [replace(asked, seed=seed) for seed in range(4)]
    with open_tiny(model.path, k=3, **settings) as engine:
        alone = [engine.generate([PROMPT], each)[0] for each in params]
        assert engine.scheduler.counters.preemptions == 0
    with open_tiny(model.path, k=3, scheduler__num_blocks=20, **settings) as engine:
        outputs = engine.generate([PROMPT] * 4, params)
        assert engine.scheduler.counters.preemptions > 1
        check_idle(engine)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
    told = [[each.token_id for each in output.logprobs or ()] for output in outputs]
    assert told == [list(output.token_ids) for output in alone]
