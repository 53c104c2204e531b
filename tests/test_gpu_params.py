"""Request parameters on a GPU: the tokens of the NumPy reference for greedy requests of every kind, the CPU's for sampled ones."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.device import open_device
from runtime.engine import Engine
from tests.test_runtime_engine_logprobs import arrivals as logprob_arrivals
from tests.test_runtime_engine_logprobs import check as check_logprobs
from tests.test_runtime_engine_logprobs import check_prompt, prompt_arrivals
from tests.test_runtime_engine_params import GREEDY, PROMPTS, outputs_of, params_of, sampled_arrivals
from tests.tiny_engine import ENDING, LOOPING, Arrival, Reference, check_outputs, drive, open_tiny, tiny_reference

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["looping", "ending"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp(request.param), {"looping": LOOPING, "ending": ENDING}[request.param])


def open_gpu(reference: Reference, k: int, **settings: Any) -> Engine:
    return open_tiny(reference.model.path, k=k, on=open_device("cuda", poison=True), device="cuda", **settings)


@pytest.mark.parametrize("k", [0, 3, 7])
def test_greedy_requests_of_every_kind_in_one_batch(reference: Reference, k: int) -> None:
    arrivals = [Arrival(PROMPTS[i % len(PROMPTS)], params_of(name), step=i // 3) for i, name in enumerate(GREEDY)]
    with open_gpu(reference, k) as engine:
        check_outputs(reference, engine, arrivals, drive(engine, arrivals))


@pytest.mark.parametrize("settings", [{"k": 3}, {"k": 0}, {"k": 7, "runner__async": False, "scheduler__num_blocks": 18}], ids=str)
def test_sampled_tokens_are_those_of_the_cpu(reference: Reference, settings: dict[str, Any]) -> None:
    """The same numbers are drawn and the same tokens kept; only a logit within rounding of a threshold could tell the two apart."""
    arrivals = sampled_arrivals()
    expected = [output.token_ids for output in outputs_of(reference, arrivals, k=0)]
    with open_gpu(reference, **settings) as engine:
        assert [output.token_ids for output in drive(engine, arrivals)] == expected


@pytest.mark.parametrize("k", [0, 3])
def test_logprobs(reference: Reference, k: int) -> None:
    arrivals = logprob_arrivals()
    with open_gpu(reference, k) as engine:
        outputs = drive(engine, arrivals)
    for arrival, output in zip(arrivals, outputs, strict=True):
        check_logprobs(reference, arrival, output)


@pytest.mark.parametrize("settings", [{}, {"scheduler__max_num_batched_tokens": 7, "scheduler__max_num_seqs": 2}], ids=str)
def test_logprobs_of_prompts(reference: Reference, settings: dict[str, Any]) -> None:
    arrivals = prompt_arrivals()
    with open_gpu(reference, 3, **settings) as engine:
        outputs = drive(engine, arrivals)
    for arrival, output in zip(arrivals, outputs, strict=True):
        check_prompt(reference, arrival, output)
