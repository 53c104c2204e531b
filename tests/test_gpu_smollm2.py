"""SmolLM2-135M-Instruct on a GPU: in float32 the token streams that llama.cpp gives; in batch_invariant bfloat16 the same tokens
with drafts as without, for prompts that no drafter was trained on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.test_smollm2_oracle import CASES, SIXTY_FOUR
from tests.tiny_engine import Arrival, check_idle, drive

pytestmark = [pytest.mark.gpu, pytest.mark.model]

ROOT = Path(__file__).resolve().parents[1]
MODES = [
    {"k": 0},
    {"k": 3},
    {"k": 7},
    {"k": 7, "runner__async": False},
    {"k": 3, "mirror__policy": "integrated"},
    {"k": 3, "graphs__mode": "eager"},
]


PROMPTS: list[str] = [
    text for texts in json.loads((ROOT / "tests/data/held_out_prompts.json").read_text("utf-8")).values() for text in texts
]
SPECULATORS = {
    "ngram 3": {"method": "ngram", "num_speculative_tokens": 3},
    "ngram 7": {"method": "ngram", "num_speculative_tokens": 7},
    "dflash2 7": {
        "method": "dflash",
        "draft_source": str(ROOT / "configs/drafters/smollm2-dflash2"),
        "num_speculative_tokens": 7,
    },
}


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


def open_invariant(path: Path, speculator: dict[str, Any]) -> Engine:
    return Engine.from_config(
        {},
        model__source=str(path),
        model__dtype="bfloat16",
        numerics="batch_invariant",
        device="cuda",
        scheduler={"max_num_seqs": 8, "max_model_len": 256, "max_num_batched_tokens": 256},
        speculator=speculator,
    )


def answers(engine: Engine, concurrency: int) -> list[tuple[int, ...]]:
    """64 tokens for each of the 40 prompts, `concurrency` of them at a time; as one ends the next begins."""
    tokens: list[tuple[int, ...]] = []
    step = len(PROMPTS) if concurrency > 1 else 1
    for first in range(0, len(PROMPTS), step):
        tokens += [output.token_ids for output in engine.generate(PROMPTS[first : first + step], SIXTY_FOUR)]
    return tokens


@pytest.fixture(scope="module")
def plain_answers(smollm2_path: Path) -> list[tuple[int, ...]]:
    with open_invariant(smollm2_path, {"method": "none"}) as engine:
        alone, together = answers(engine, 1), answers(engine, 8)
    assert together == alone, "plain decoding depends on the batch"
    return alone


@pytest.mark.parametrize("name", SPECULATORS)
def test_drafts_change_no_bit(smollm2_path: Path, plain_answers: list[tuple[int, ...]], name: str, record_property: Any) -> None:
    """40 prompts, one at a time and eight at a time, in bfloat16, where plain libraries change a token in most texts."""
    with open_invariant(smollm2_path, SPECULATORS[name]) as engine:
        for concurrency in (1, 8):
            tokens = answers(engine, concurrency)
            same = sum(ours == plain for ours, plain in zip(tokens, plain_answers, strict=True))
            record_property(f"SmolLM2 bf16 batch_invariant, {name} = plain at c={concurrency}", f"{same} of {len(PROMPTS)}")
            assert same == len(PROMPTS)
        check_idle(engine)
