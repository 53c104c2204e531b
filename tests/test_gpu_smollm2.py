"""SmolLM2-135M-Instruct on a GPU in float32: the token streams that llama.cpp gives, and what a token costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.test_smollm2_oracle import CASES, SIXTY_FOUR
from tests.tiny_engine import Arrival, check_idle, drive

pytestmark = [pytest.mark.gpu, pytest.mark.model]

MODES = [
    {"k": 0},
    {"k": 3},
    {"k": 7},
    {"k": 7, "runner__async": False},
    {"k": 3, "mirror__policy": "integrated"},
    {"k": 3, "graphs__mode": "eager"},
]


def open_smollm2(path: Path, k: int, **overrides: Any) -> Engine:
    return Engine.from_config(
        {},
        model__source=str(path),
        device="cuda",
        scheduler={"max_num_seqs": 4, "max_model_len": 256, "max_num_batched_tokens": 128},
        speculator={"method": "ngram" if k else "none", "num_speculative_tokens": k},
        **overrides,
    )


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_64_of_64_tokens(smollm2_path: Path, mode: dict[str, Any], record_property: Any) -> None:
    began = time.perf_counter()
    with open_smollm2(smollm2_path, **mode) as engine:
        record_property(f"SmolLM2 fp32 {mode}, s to open", f"{time.perf_counter() - began:.1f}")
        for case in CASES:
            output = engine.generate(case["prompt_token_ids"], SIXTY_FOUR)[0]
            assert list(output.token_ids) == case["greedy_token_ids"], case["name"]
        record_property(f"SmolLM2 fp32 {mode}, ms a token ({case['name']})", f"{(output.tpot_s or 0) * 1e3:.3f}")
        arrivals = [Arrival(case["prompt_token_ids"], SIXTY_FOUR, step) for case, step in zip(CASES, (0, 3, 11), strict=True)]
        outputs = drive(engine, arrivals)
        assert [list(output.token_ids) for output in outputs] == [case["greedy_token_ids"] for case in CASES]
        check_idle(engine)


def test_the_prompt_as_text_gives_the_answer(smollm2_path: Path) -> None:
    with open_smollm2(smollm2_path, 3) as engine:
        output = engine.generate("What is the capital of France?", SamplingParams(max_tokens=64))[0]
    assert (output.text, output.finish_reason) == ("The capital of France is Paris.", "stop")
