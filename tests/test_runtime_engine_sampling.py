"""Sampled requests through the whole engine: the same seed, the same text, whatever surrounds it; and the text is the target's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.engine import Engine
from runtime.report import RequestOutput
from runtime.request_seed import derived_seed
from runtime.sampling import SamplingParams
from tests.candidate_proposer import drafts_from
from tests.reference_forward import reference_logits
from tests.speculative_chains import chi_square, filtered, limit
from tests.tiny_checkpoint import VOCAB_SIZE
from tests.tiny_drafter import DrafterShape, write_tiny_drafter
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, drive, open_tiny, tiny_reference

PROMPT = [3, 4, 5, 6, 3, 4, 5]
WARM = SamplingParams(temperature=0.8, seed=11, max_tokens=24, ignore_eos=True)
OTHERS = [
    Arrival([7, 8, 9], SamplingParams(temperature=1.3, seed=11, max_tokens=30, ignore_eos=True)),
    Arrival([10, 11], SamplingParams(max_tokens=20, ignore_eos=True)),
    Arrival(PROMPT, SamplingParams(temperature=0.8, seed=12, max_tokens=26, ignore_eos=True), step=1),
    Arrival([5] * 9, SamplingParams(temperature=0.5, top_k=5, seed=2**63 - 1, max_tokens=9), step=2),
    Arrival([20, 21, 22], SamplingParams(temperature=1.0, top_p=0.7, seed=0, max_tokens=28, ignore_eos=True), step=3),
    Arrival([9, 9, 8], SamplingParams(max_tokens=15, repetition_penalty=1.2), step=5),
    Arrival([12, 13], SamplingParams(temperature=2.0, seed=5, min_p=0.1, max_tokens=22), step=6),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("sampling") / "looping", LOOPING)


def text_of(engine: Engine, params: SamplingParams = WARM) -> tuple[int, ...]:
    return drive(engine, [Arrival(PROMPT, params)])[0].token_ids


@pytest.fixture(scope="module")
def alone(reference: Reference) -> tuple[int, ...]:
    """The text of one request alone, without speculation."""
    with open_tiny(reference.model.path, k=0) as engine:
        tokens = text_of(engine)
        assert engine.runner.paths.sampled_steps["temperature"] > 20
    assert len(set(tokens)) > 5
    return tokens


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "random", "seed": 3},
        {"runner__async": False},
        {"runner__steps_in_flight": 4},
        {"graphs__mode": "eager"},
        {"graphs__buckets": [4]},
        {"scheduler__max_num_batched_tokens": 4},
        {"mirror__policy": "integrated"},
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_text(reference: Reference, alone: tuple[int, ...], k: int, settings: dict[str, Any]) -> None:
    """Alone and in a batch of eight with other parameters, under every way to run; drafts of prompt lookup change nothing."""
    with open_tiny(reference.model.path, k=k, **{"scheduler__max_num_seqs": 8, **settings}) as engine:
        assert text_of(engine) == alone
        outputs = drive(engine, [*OTHERS[:3], Arrival(PROMPT, WARM, step=2), *OTHERS[3:]])
        assert outputs[3].token_ids == alone
        if k:
            assert outputs[3].acceptance is not None
            assert outputs[3].acceptance.num_accepted_tokens > 0
        check_idle(engine)


@pytest.mark.parametrize("k", [0, 3])
def test_a_preemption_leaves_the_text_alone(reference: Reference, alone: tuple[int, ...], k: int) -> None:
    others = [replace(other, step=0) for other in OTHERS[:3]]
    with open_tiny(reference.model.path, k=k, scheduler__num_blocks=20) as engine:
        outputs = drive(engine, [*others, Arrival(PROMPT, WARM, step=1)])
        assert engine.scheduler.counters.preemptions > 0
        assert outputs[3].token_ids == alone
        check_idle(engine)


@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("settings", [{}, {"runner__steps_in_flight": 4}, {"runner__async": False}], ids=str)
def test_a_preemption_leaves_the_text_alone_with_a_drafters_distribution(
    reference: Reference, verification: str, settings: dict[str, Any]
) -> None:
    """A block begins again where the last one ended, so that each draft meets the numbers that it would have met."""
    params = [replace(WARM, seed=seed, max_tokens=30) for seed in range(4)]
    settings = {"speculator__verification": verification, **settings}
    with drafts_from(*any_candidates()):
        with open_tiny(reference.model.path, k=4, scheduler__max_num_seqs=4, **settings) as engine:
            expected = [drive(engine, [Arrival(PROMPT, each)])[0].token_ids for each in params]
            assert engine.scheduler.counters.preemptions == 0
        with open_tiny(reference.model.path, k=4, scheduler__max_num_seqs=4, scheduler__num_blocks=20, **settings) as engine:
            outputs = drive(engine, [Arrival(PROMPT, each, step=number) for number, each in enumerate(params)])
            assert engine.scheduler.counters.preemptions > 1
            assert [output.token_ids for output in outputs] == expected
            check_idle(engine)


def test_greedy_requests_beside_sampled_ones_are_greedy(reference: Reference, alone: tuple[int, ...]) -> None:
    plain = [OTHERS[1], Arrival(PROMPT, SamplingParams(max_tokens=20))]
    for k in (0, 3):
        with open_tiny(reference.model.path, k=k) as engine:
            expected = [output.token_ids for output in drive(engine, plain)]
            assert not engine.runner.paths.sampled_steps
            outputs = drive(engine, [*plain, Arrival(PROMPT, WARM)])
            assert [output.token_ids for output in outputs] == [*expected, alone]
            assert engine.runner.paths.sampled_steps
            # A slot that sampled is greedy for its next owner, in the graphs for greedy steps again.
            before = dict(engine.runner.paths.sampled_steps)
            assert [output.token_ids for output in drive(engine, [*plain, *plain])] == [*expected, *expected]
            assert engine.runner.paths.sampled_steps == before


def test_a_stop_inside_a_block_of_drafts(reference: Reference, alone: tuple[int, ...]) -> None:
    """The text ends with the first stop id, and the history behind it as well: the next request drafts from its own."""
    for stop in sorted(set(alone), key=alone.index)[2:8]:
        params = replace(WARM, stop_token_ids=(stop,))
        for k in (0, 3, 7):
            with open_tiny(reference.model.path, k=k) as engine:
                output = drive(engine, [Arrival(PROMPT, params)])[0]
                assert output.token_ids == alone[: alone.index(stop) + 1]
                assert output.finish_reason == "stop"
                assert text_of(engine) == alone


def any_candidates() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Five of the twenty-four likely ids behind each token."""
    rng = np.random.default_rng(3)
    ids = np.stack([rng.choice(LOOPING.num_likely_ids, 5, replace=False) for _ in range(VOCAB_SIZE)]).astype(np.int32)
    return ids, rng.dirichlet(np.ones(5), VOCAB_SIZE).astype(np.float32)


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_the_same_seed_gives_the_same_text_with_a_drafters_distribution(reference: Reference, verification: str) -> None:
    """Here drafts decide which numbers are used: everything but the drafts may change."""
    settings: dict[str, Any] = {"speculator__verification": verification, "scheduler__max_num_seqs": 8}
    texts = set()
    with drafts_from(*any_candidates()):
        for changes in ({}, {"runner__async": False}, {"graphs__buckets": [8]}, {"schedule": "random", "graphs__mode": "eager"}):
            with open_tiny(reference.model.path, k=4, **settings, **changes) as engine:
                texts.add(text_of(engine))
                outputs = drive(engine, [*OTHERS[:3], Arrival(PROMPT, WARM, step=2), *OTHERS[3:]])
                texts.add(outputs[3].token_ids)
                assert outputs[3].acceptance is not None
                assert outputs[3].acceptance.num_accepted_tokens > 0
                check_idle(engine)
                text = text_of(engine)
                for stop in text[1:9]:
                    output = drive(engine, [Arrival(PROMPT, replace(WARM, stop_token_ids=(stop,)))])[0]
                    assert output.token_ids == text[: text.index(stop) + 1]
    assert len(texts) == 1


def test_requests_without_a_seed_differ_and_can_be_repeated(reference: Reference) -> None:
    def texts(seed: int) -> list[tuple[int, ...]]:
        with open_tiny(reference.model.path, k=0) as engine:
            engine._seed = seed
            return [output.token_ids for output in drive(engine, [Arrival(PROMPT, replace(WARM, seed=None))] * 3)]

    first = texts(0)
    assert len(set(first)) == 3
    assert texts(0) == first
    assert not set(texts(1)) & set(first)
    with open_tiny(reference.model.path, k=0) as engine:
        assert text_of(engine, replace(WARM, seed=derived_seed(0, 1))) == first[1]


def test_rows_without_a_finite_logit_are_reported(reference: Reference, caplog: pytest.LogCaptureFixture) -> None:
    """7 alone is allowed, and forbidden behind two of itself: the text ends there, whatever was drafted, and so that one knows why.
    The others go on, and what comes next in the slot is as if nothing had been."""
    params = SamplingParams(max_tokens=6, allowed_token_ids=(7, 8), bad_words=((8,), (7, 7, 7)), ignore_eos=True)
    for k, temperature in ((0, 1.0), (3, 0.0), (3, 1.0), (7, 1.0)):
        with open_tiny(reference.model.path, k=k) as engine:
            few = replace(params, temperature=temperature, seed=1)
            none = replace(few, bad_words=((8,), (PROMPT[-1], 7)))
            prompt = [7, 7, 7, 9, 7, 7, 7, 9]
            outputs = drive(engine, [Arrival(prompt, few), Arrival(PROMPT, none), Arrival(PROMPT, WARM)])
            assert [output.token_ids for output in outputs[:2]] == [(7, 7), ()]
            assert [output.finish_reason for output in outputs] == ["error", "error", "length"]
            assert engine.runner.paths.degenerate_tokens == 2
            assert "request-0: no token could be chosen behind its first 2" in caplog.text
            assert "request-1: no token could be chosen behind its first 0" in caplog.text
            assert text_of(engine) == outputs[2].token_ids
            check_idle(engine)
        caplog.clear()


# The distribution, through the engine


def exact(reference: Reference, params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of `length` tokens that is possible."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            logits = reference_logits(reference.model.config, reference.model.tensors, (*PROMPT, *text))[-1].astype(np.float64)
            p = np.exp(logits - logits.max())
            row = filtered((p / p.sum())[None], params.temperature, params.top_k, params.top_p)[0]
            for token in np.flatnonzero(row):
                longer[(*text, int(token))] = probability * row[token]
        texts = longer
    return texts


def candidates(kind: str, texts: Sequence[tuple[int, ...]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Three candidates behind each token: those that follow it in some text, or two that never do."""
    rng = np.random.default_rng(1)
    ids = np.stack([rng.choice(VOCAB_SIZE, 3, replace=False) for _ in range(VOCAB_SIZE)]).astype(np.int32)
    followers: dict[int, set[int]] = {}
    for text in texts:
        for before, token in zip((PROMPT[-1], *text), text, strict=False):
            followers.setdefault(before, set()).add(token)
    for before, tokens in followers.items():
        known = sorted(tokens)[: 3 if kind == "likely" else 1]
        ids[before, : len(known)] = known
        others = [token for token in range(100, 103) if token not in known]
        ids[before, len(known) :] = others[: 3 - len(known)]
    return ids, rng.dirichlet(np.full(3, 2.0), VOCAB_SIZE).astype(np.float32)


KINDS = [
    "none",
    "ngram",
    "dflash 1",
    *(f"{drafts} {verification}" for drafts in ("likely", "unlikely", "dflash 2") for verification in ("standard", "block")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_a_sample_of_the_target(reference: Reference, kind: str, tmp_path: Path) -> None:
    """Every text of three tokens that top_k = 3 leaves, counted over 1,500 requests that only differ in their seeds."""
    params = SamplingParams(temperature=1.2, top_k=3, max_tokens=3, ignore_eos=True)
    length, count = params.max_tokens, 1500
    probabilities = exact(reference, params, length)
    with ExitStack() as stack:
        settings: dict[str, Any] = {"k": 0 if kind == "none" else 2}
        if kind.endswith(("standard", "block")):
            settings["speculator__verification"] = kind.split()[-1]
        if kind.startswith("dflash"):
            shape = DrafterShape(version=int(kind.split()[1]), taps=(0,))
            drafter = write_tiny_drafter(tmp_path / "drafter", LOOPING, shape)
            settings |= {"speculator__method": "dflash", "speculator__draft_source": str(drafter.path)}
        elif " " in kind:
            stack.enter_context(drafts_from(*candidates(kind.split()[0], list(probabilities))))
        engine = stack.enter_context(open_tiny(reference.model.path, scheduler__max_num_seqs=16, **settings))
        outputs = drive(engine, [Arrival(PROMPT, replace(params, seed=seed)) for seed in range(count)], max_steps=10_000)
    check_counts(outputs, probabilities, count)
    stats = [output.acceptance for output in outputs if output.acceptance is not None]
    assert (sum(each.num_draft_tokens for each in stats) > 0) == (kind != "none")
    assert (sum(each.num_accepted_tokens for each in stats) > 0) == kind.endswith(("standard", "block"))


def check_counts(outputs: Sequence[RequestOutput], probabilities: dict[tuple[int, ...], float], count: int) -> None:
    texts = list(probabilities)
    counts = dict.fromkeys(texts, 0)
    for output in outputs:
        counts[output.token_ids] += 1
    statistic, freedom = chi_square(np.array(list(counts.values())), count * np.array([probabilities[text] for text in texts]))
    assert freedom >= 10
    assert statistic < limit(freedom), f"chi-square {statistic:.0f} at {freedom} degrees of freedom"
