"""Engine: request parameters of every kind, mixed in one batch, with drafts and without, against NumPy on whole token lists."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.engine import Engine
from runtime.errors import SamplingError
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams
from tests.reference_sampling import drawable, processed
from tests.tiny_engine import ENDING, EOS, LOOPING, Arrival, Reference, check_idle, check_outputs, drive, open_tiny, tiny_reference

MAX_MODEL_LEN = 64
DRAFTS = pytest.mark.parametrize("k", [0, 3, 7])
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9, 10, 7, 8], [11] * 5, [5, 6, 5, 6, 5, 6, 5], [20, 21, 3, 4, 5], [9, 10, 11, 12]]

GREEDY: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "rewarding repetition": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 0.4},
    "frequency": {"frequency_penalty": 0.2},
    "negative": {"frequency_penalty": -0.15, "presence_penalty": -0.3},
    "all penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {7: 0.5}},
    "bias": {"logit_bias": {8: 1.5, 5: -100, 11: 0.25}},
    "allowed": {"allowed_token_ids": [4, 7, 9, 12, EOS, 17]},
    "bad words": {"bad_words": [[6], [7, 8], [9, 10, 11], [3, 4, 5], [12, 12]]},
    "min_tokens": {"min_tokens": 13, "stop_token_ids": [4, 9]},
    "everything": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.1,
        "logit_bias": {9: 1.0},
        "bad_words": [[4, 5], [10]],
        "allowed_token_ids": range(2, 20),
        "min_tokens": 9,
        "stop_token_ids": [12, 15],
    },
    "plain": {},
}


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("params") / "looping", LOOPING)


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("params") / "ending", ENDING)


def params_of(name: str, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **GREEDY[name])


@DRAFTS
def test_greedy_requests_of_every_kind_in_one_batch(looping: Reference, ending: Reference, k: int) -> None:
    """Twelve requests with other parameters each, four at a time: slots change hands between requests that have counts, lists and
    nothing, and blocks of accepted drafts meet each of them."""
    accepted = 0
    for reference in (looping, ending):
        arrivals = [Arrival(PROMPTS[i % len(PROMPTS)], params_of(name), step=i // 3) for i, name in enumerate(GREEDY)]
        with open_tiny(reference.model.path, k=k) as engine:
            outputs = drive(engine, arrivals)
            check_outputs(reference, engine, arrivals, outputs)
            accepted += engine.scheduler.acceptance.num_accepted_tokens
    assert k == 0 or accepted > 20


@pytest.mark.parametrize("seed", range(12))
def test_any_parameters_in_any_batch(looping: Reference, ending: Reference, seed: int) -> None:
    rng = random.Random(seed)
    reference = rng.choice([looping, ending])
    k = rng.choice([0, 1, 3, 7])
    settings: dict[str, Any] = {
        "runner__async": rng.random() < 0.7,
        "mirror__policy": rng.choice(["discrete", "integrated"]),
        "graphs__mode": rng.choice(["graph", "eager"]),
        "scheduler__max_num_seqs": rng.choice([1, 3, 4]),
        "scheduler__num_blocks": rng.choice(["auto", 18]),  # little enough for preemptions
    }
    arrivals = [
        Arrival([rng.randrange(3, 24) for _ in range(rng.choice([1, 4, 9, 40]))], draw_params(rng), step=rng.choice([0, 1, 7]))
        for _ in range(5)
    ]
    schedule = rng.choice(["eager", "lazy", "random"])
    with open_tiny(reference.model.path, k=k, schedule=schedule, seed=seed, **settings) as engine:
        check_outputs(reference, engine, arrivals, drive(engine, arrivals))


def draw_params(rng: random.Random) -> SamplingParams:
    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.4 else otherwise

    max_tokens = rng.choice([1, 5, 20, 40])
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=sometimes(min(max_tokens, rng.choice([1, 6, 11])), 0),
        repetition_penalty=sometimes(rng.choice([0.7, 1.15, 1.5]), 1.0),
        presence_penalty=sometimes(rng.choice([-0.35, 0.45]), 0.0),
        frequency_penalty=sometimes(rng.choice([-0.25, 0.15, 0.55]), 0.0),
        logit_bias=sometimes({rng.randrange(3, 24): rng.choice([-3.5, 0.75, 2.25]) for _ in range(3)}, {}),
        allowed_token_ids=sometimes(rng.sample(range(2, 24), 9), None),
        bad_words=sometimes([[rng.randrange(3, 24) for _ in range(rng.choice([1, 2, 3]))] for _ in range(4)], []),
        stop_token_ids=sometimes([rng.randrange(3, 24)], []),
        ignore_eos=rng.random() < 0.5,
    )


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.3, "min_p": 0.2},
    {"temperature": 0.9, "top_k": 6, "top_p": 0.8, "min_p": 0.02, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_p": 0.9, "bad_words": [[4], [7, 8], [3, 4, 5]], "logit_bias": {9: 2.0}, "min_tokens": 12},
    {"temperature": 100.0, "allowed_token_ids": [3, 5, 8, 13, 21], "presence_penalty": 2.0},
    {"temperature": 0.0, "frequency_penalty": 0.2},
    {"temperature": 1.0, "top_k": 1},
]


def sampled_arrivals() -> list[Arrival]:
    made = [SamplingParams(max_tokens=30, seed=100 + i, **fields) for i, fields in enumerate(SAMPLED)]
    return [Arrival(PROMPTS[i % len(PROMPTS)], params) for i, params in enumerate(made)]


def outputs_of(reference: Reference, arrivals: list[Arrival], **settings: Any) -> list[RequestOutput]:
    with open_tiny(reference.model.path, **settings) as engine:
        outputs = drive(engine, arrivals)
        check_idle(engine)
    return outputs


@DRAFTS
def test_sampled_tokens_are_drawn_from_what_the_filters_leave(looping: Reference, k: int) -> None:
    arrivals = sampled_arrivals()
    for arrival, output in zip(arrivals, outputs_of(looping, arrivals, k=k), strict=True):
        params, tokens = arrival.params, output.token_ids
        stops = {EOS}
        for i, token in enumerate(tokens):
            before = tuple(arrival.prompt), tokens[:i]
            logits = processed(looping.logits(before[0] + before[1]), *before, params, stops)
            choices = drawable(logits, params, 1e-4) if params.temperature > 0 else {int(logits.argmax())}
            assert token in choices, f"{params}: token {i} of {tokens}"


def test_sampled_text_is_the_same_in_every_arm(looping: Reference) -> None:
    """Sync and async, graph and eager, other batches, preemptions, with drafts and without: processors depend on tokens alone."""
    arrivals = sampled_arrivals()
    expected = [output.token_ids for output in outputs_of(looping, arrivals, k=0)]
    arms: list[dict[str, Any]] = [
        {"k": 3},
        {"k": 7, "runner__async": False},
        {"k": 3, "scheduler__num_blocks": 18, "scheduler__max_num_seqs": 3},
        {"k": 3, "graphs__mode": "eager", "mirror__policy": "integrated", "schedule": "random"},
        {"k": 0, "scheduler__max_num_seqs": 1},
    ]
    for arm in arms:
        assert [output.token_ids for output in outputs_of(looping, arrivals, **arm)] == expected, arm


def test_a_preempted_request_keeps_its_counts(looping: Reference) -> None:
    kinds = [replace(params_of(name, 40), ignore_eos=True) for name in ("frequency", "all penalties", "presence")]
    arrivals = [Arrival(prompt, params) for prompt, params in zip(PROMPTS, kinds, strict=False)]
    with open_tiny(looping.model.path, k=3, scheduler__num_blocks=18) as engine:
        outputs = drive(engine, arrivals)
        assert engine.scheduler.counters.preemptions > 0
        check_outputs(looping, engine, arrivals, outputs)


def test_steps_take_the_sampled_graphs_only_when_a_request_asks(looping: Reference) -> None:
    with open_tiny(looping.model.path, k=3) as engine:
        engine.generate(PROMPTS[:2], SamplingParams(max_tokens=8))
        assert not engine.runner.paths.sampled_steps
        engine.generate(PROMPTS[:2], [params_of("bias", 8), SamplingParams(max_tokens=8)])
        assert set(engine.runner.paths.sampled_steps) == {"logit_bias"}


def test_a_slot_keeps_nothing_of_its_former_owner(looping: Reference) -> None:
    """One slot: a request with every list and many counts, then one whose parameters read each array that the first one filled."""
    first = params_of("everything", 40)
    later = [
        SamplingParams(max_tokens=20, frequency_penalty=0.05),
        SamplingParams(max_tokens=20, logit_bias={3: 0.25}),
        SamplingParams(max_tokens=20, bad_words=[[14]]),
        SamplingParams(max_tokens=20, temperature=0.5, seed=4),
    ]
    with open_tiny(looping.model.path, k=3, scheduler__max_num_seqs=1) as engine:
        for params in later:
            alone = outputs_of(looping, [Arrival(PROMPTS[1], params)], k=3)[0].token_ids
            engine.generate([PROMPTS[0]], first)
            assert engine.generate([PROMPTS[1]], params)[0].token_ids == alone


# ---- n ---------------------------------------------------------------------------------------------------------------


def test_n_sequences_have_seeds_of_their_own_and_can_be_had_alone(looping: Reference) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5, n=3)
    with open_tiny(looping.model.path, k=3) as engine:
        outputs = engine.generate(PROMPTS[:2], [params, replace(params, n=2)])
        assert [(output.prompt, output.sample) for output in outputs] == [(PROMPTS[0], i) for i in range(3)] + [
            (PROMPTS[1], i) for i in range(2)
        ]
        assert outputs[0].seed == 5
        assert len({output.seed for output in outputs[:3]}) == 3
        assert len({output.token_ids for output in outputs[:3]}) == 3
        for output in outputs:
            again = engine.generate([output.prompt], replace(params, n=1, seed=output.seed))
            assert again[0].token_ids == output.token_ids


def test_submit_takes_one_sequence(looping: Reference) -> None:
    with open_tiny(looping.model.path, k=0) as engine, pytest.raises(SamplingError, match=r"n = 2: submit\(\) queues one"):
        engine.submit([3], SamplingParams(n=2, temperature=1.0))


# ---- refusals that need the model ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(looping: Reference) -> Any:
    with open_tiny(looping.model.path, k=0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"allowed_token_ids": [3, 9999]}, r"allowed_token_ids: token id 9999 is outside the vocabulary of \d+"),
        ({"stop_token_ids": [9999]}, "stop_token_ids: token id 9999"),
        ({"logit_bias": {9999: 1}}, "logit_bias: token id 9999"),
        ({"bad_words": [[3, 9999]]}, "bad_words: token id 9999"),
        ({"allowed_token_ids": [3, 4], "bad_words": [[3], [4]]}, "bad_words: they forbid every one of the 2 allowed ids"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "min_tokens = 1: every allowed id ends the request"),
    ],
)
def test_parameters_that_do_not_fit_the_model(engine: Engine, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        engine.generate([[3, 4]], SamplingParams(**fields))
    assert not engine.has_unfinished
    assert np.isfinite(len(engine.generate([[3, 4]], SamplingParams(max_tokens=2))[0].token_ids))
