"""Engine: log probabilities of emitted tokens, of the model itself, against a float64 forward; and what costs nothing unasked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.logprobs import MAX_LOGPROBS as ON_DEVICE
from runtime.report import RequestOutput
from runtime.sampling import MAX_LOGPROBS, SamplingParams
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, drive, open_tiny, tiny_reference

PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9, 10, 7, 8], [11] * 5, [5, 6, 5, 6, 5, 6, 5], [20, 21, 3, 4, 5]]
ASKED: list[dict[str, Any]] = [
    {"logprobs": 3},
    {},
    {"logprobs": 0, "repetition_penalty": 1.4, "logit_bias": {8: 3.0}},
    {"logprobs": 20, "temperature": 1.1, "top_k": 5, "seed": 3},
    {"logprobs": 1, "stop_token_ids": [4], "min_tokens": 5},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("logprobs") / "looping", LOOPING)


def arrivals() -> list[Arrival]:
    made = [SamplingParams(max_tokens=22, **fields) for fields in ASKED]
    return [Arrival(prompt, params, step) for step, (prompt, params) in enumerate(zip(PROMPTS, made, strict=True))]


def check(reference: Reference, arrival: Arrival, output: RequestOutput) -> None:
    if arrival.params.logprobs is None:
        assert output.logprobs is None
        return
    assert output.logprobs is not None
    assert [token.token_id for token in output.logprobs] == list(output.token_ids)
    for i, told in enumerate(output.logprobs):
        logits = reference.logits(tuple(arrival.prompt) + output.token_ids[:i])
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert told.logprob == pytest.approx(logprobs[told.token_id], abs=2e-5)
        assert told.rank == pytest.approx(np.count_nonzero(logits >= logits[told.token_id] - 1e-5), abs=1)
        best = np.argsort(-logprobs)[: arrival.params.logprobs]
        np.testing.assert_allclose([value for _, value in told.top], logprobs[best], atol=2e-5)
        np.testing.assert_allclose(logprobs[[token for token, _ in told.top]], logprobs[best], atol=2e-5)


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (0, {}),
        (3, {}),
        (7, {"mirror__policy": "integrated"}),
        (3, {"runner__async": False, "graphs__mode": "eager"}),
        (3, {"scheduler__num_blocks": 18, "schedule": "random", "runner__steps_in_flight": 3}),
        (3, {"scheduler__max_num_batched_tokens": 5, "scheduler__max_num_seqs": 2}),
    ],
    ids=str,
)
def test_logprobs_of_a_mixed_batch(reference: Reference, k: int, settings: dict[str, Any]) -> None:
    with open_tiny(reference.model.path, k=k, **settings) as engine:
        outputs = drive(engine, arrivals())
        check_idle(engine)
    for arrival, output in zip(arrivals(), outputs, strict=True):
        check(reference, arrival, output)


def test_greedy_tokens_are_of_rank_one(reference: Reference) -> None:
    with open_tiny(reference.model.path, k=3) as engine:
        output = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=16, logprobs=2))[0]
        assert output.acceptance is not None
        assert output.acceptance.num_accepted_tokens > 0
    assert output.logprobs is not None
    assert all(token.rank == 1 and token.top[0] == (token.token_id, token.logprob) for token in output.logprobs)


def test_events_carry_the_logprobs_of_their_tokens(reference: Reference) -> None:
    with open_tiny(reference.model.path, k=3) as engine:
        events = list(engine.stream([PROMPTS[0]], SamplingParams(max_tokens=12, logprobs=1)))
    assert all(len(event.logprobs) == len(event.token_ids) for event in events)
    output = events[-1].output
    assert output is not None
    assert tuple(token for event in events for token in event.logprobs) == output.logprobs
    told = json.loads(json.dumps(output.as_dict()))["logprobs"]
    assert [entry["token_id"] for entry in told] == list(output.token_ids)
    assert set(told[0]) == {"token_id", "logprob", "rank", "top"}


def test_steps_without_such_requests_launch_and_copy_nothing(reference: Reference) -> None:
    def counters(params: SamplingParams) -> tuple[int, int, int]:
        with open_tiny(reference.model.path, k=3) as engine:
            before = engine.runner.device.counters.copies, engine.runner.device.counters.graph_launches
            engine.generate([PROMPTS[0]], params)
            after = engine.runner.device.counters.copies, engine.runner.device.counters.graph_launches
            asked = sum(count for key, count in engine.runner.library.launches.items() if key.family.value == "logprobs")
        return asked, after[0] - before[0], after[1] - before[1]

    unasked, copies, launches = counters(SamplingParams(max_tokens=8))
    asked, more_copies, more_launches = counters(SamplingParams(max_tokens=8, logprobs=0))
    assert unasked == 0
    assert asked > 0
    assert more_launches == launches + asked
    assert more_copies == copies + 2 * asked


def test_the_two_sides_agree_on_the_largest_number() -> None:
    assert MAX_LOGPROBS == ON_DEVICE


# ---- prompts ---------------------------------------------------------------------------------------------------------


def check_prompt(reference: Reference, arrival: Arrival, output: RequestOutput) -> None:
    wanted, prompt = arrival.params.prompt_logprobs, tuple(arrival.prompt)
    if wanted is None:
        assert output.prompt_logprobs is None
        return
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for position, told in enumerate(output.prompt_logprobs[1:], start=1):
        assert told is not None
        assert told.token_id == prompt[position]
        logits = reference.logits(prompt[:position])
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert told.logprob == pytest.approx(logprobs[told.token_id], abs=2e-5)
        assert told.rank == pytest.approx(np.count_nonzero(logits >= logits[told.token_id] - 1e-5), abs=1)
        np.testing.assert_allclose([value for _, value in told.top], np.sort(logprobs)[::-1][:wanted], atol=2e-5)


def prompt_arrivals() -> list[Arrival]:
    prompts = [[3 + i % 20 for i in range(41)], [7, 8, 9, 10, 7, 8], [11], [5, 6] * 15, [20, 21, 3, 4, 5]]
    both: dict[str, Any] = {"prompt_logprobs": 0, "logprobs": 2}
    asked: list[dict[str, Any]] = [{"prompt_logprobs": 2}, {}, {"prompt_logprobs": 1}, both, {"logprobs": 1}]
    made = [SamplingParams(max_tokens=12, **fields) for fields in asked]
    return [Arrival(prompt, params, step) for step, (prompt, params) in enumerate(zip(prompts, made, strict=True))]


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (0, {}),
        (3, {"scheduler__max_num_batched_tokens": 7, "scheduler__max_num_seqs": 2}),
        (3, {"runner__async": False, "graphs__mode": "eager", "mirror__policy": "integrated"}),
        (3, {"scheduler__num_blocks": 18, "schedule": "random", "runner__steps_in_flight": 3}),
    ],
    ids=str,
)
def test_logprobs_of_prompts(reference: Reference, k: int, settings: dict[str, Any]) -> None:
    """Prompts that are prefilled in chunks, longer than the head takes at once, beside decode rows, and anew after a preemption."""
    arrivals = prompt_arrivals()
    with open_tiny(reference.model.path, k=k, **settings) as engine:
        outputs = drive(engine, arrivals)
        check_idle(engine)
        plain = [replace(arrival, params=replace(arrival.params, prompt_logprobs=None)) for arrival in arrivals]
        assert [output.token_ids for output in drive(engine, plain)] == [output.token_ids for output in outputs]
    for arrival, output in zip(arrivals, outputs, strict=True):
        check_prompt(reference, arrival, output)
        check(reference, arrival, output)
