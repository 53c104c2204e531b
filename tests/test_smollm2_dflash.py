"""SmolLM2-135M-Instruct with its trained drafters: the steps that z-lab's own loop takes, and the text of plain decoding.

The DFlash2 drafter is in the repository. That of DFlash is not: DRAFTGRAPH_DFLASH1 names its folder where there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.weights import destinations
from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.reference_dflash import ReferenceDrafter, replay
from tests.reference_forward import reference_residuals
from tests.test_runtime_checkpoint_smollm2 import CONFIG
from tests.tiny_drafter import read_tensors
from tests.tiny_engine import Arrival, check_idle, drive

pytestmark = pytest.mark.model

ROOT = Path(__file__).resolve().parents[1]
CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/oracle/dflash_steps.json").read_text("utf-8"))["cases"]
DRAFTERS = {
    "smollm2-dflash2": str(ROOT / "configs/drafters/smollm2-dflash2"),
    "smollm2-dflash": os.environ.get("DRAFTGRAPH_DFLASH1"),
}
PARAMS = SamplingParams(max_tokens=128)


def drafter_path(name: str) -> str:
    path = DRAFTERS[name]
    if path is None:
        pytest.skip("the first DFlash drafter is not in the repository: name its folder with DRAFTGRAPH_DFLASH1")
    return path


def open_smollm2(target: Path, drafter: str | None, **settings: Any) -> Engine:
    speculator = {"method": "dflash", "draft_source": drafter, "num_speculative_tokens": 7} if drafter else {"method": "none"}
    return Engine.from_config(
        {},
        model__source=str(target),
        device="cpu",
        runner__cpu_threads=1,  # whatever else runs: two threads on a core that others need take many times as long
        scheduler={"max_num_seqs": 4, "max_model_len": 320, "max_num_batched_tokens": 128},
        speculator=speculator,
        **settings,
    )


@pytest.fixture(scope="module")
def plain_texts(smollm2_path: Path) -> dict[str, tuple[int, ...]]:
    """Greedy answers without drafts, by prompt."""
    prompts = {case["prompt"]: case["prompt_token_ids"] for case in CASES}
    with open_smollm2(smollm2_path, None) as engine:
        outputs = engine.generate(list(prompts.values()), PARAMS)
    return dict(zip(prompts, (output.token_ids for output in outputs), strict=True))


@pytest.fixture(scope="module", params=DRAFTERS)
def engine(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[tuple[str, Engine]]:
    with open_smollm2(smollm2_path, drafter_path(request.param), mirror__poison=True) as engine:
        yield request.param, engine


def tokens_per_step(engine: Engine, prompt: list[int]) -> list[int]:
    """Of the steps behind the prefill, which yields the first token."""
    blocks = [len(event.token_ids) for event in engine.stream([prompt], PARAMS) if event.token_ids]
    assert blocks[0] == 1
    return blocks[1:]


def test_steps_are_those_of_the_public_loop(engine: tuple[str, Engine]) -> None:
    name, subject = engine
    for case in (case for case in CASES if case["drafter"] == name):
        assert tokens_per_step(subject, case["prompt_token_ids"]) == case["tokens_per_step"], case["prompt"]


def test_text_is_that_of_plain_decoding_in_a_batch(engine: tuple[str, Engine], plain_texts: dict[str, tuple[int, ...]]) -> None:
    """Prompts of 37 to 143 tokens, the longest in two chunks beside verify rows, arriving while others decode."""
    name, subject = engine
    cases = [case for case in CASES if case["drafter"] == name]
    arrivals = [Arrival(case["prompt_token_ids"], PARAMS, step) for case, step in zip(cases, (0, 0, 2, 5), strict=True)]
    outputs = drive(subject, arrivals)
    for case, output in zip(cases, outputs, strict=True):
        assert output.token_ids == plain_texts[case["prompt"]], case["prompt"]
        assert len(output.token_ids) == case["num_output_tokens"]
        assert output.acceptance is not None
        # Batched products round a little differently: a near-tie among the drafts may fall the other way, the text may not.
        assert abs(output.acceptance.num_drafts - len(case["tokens_per_step"])) <= 2
    check_idle(subject)


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_those_of_the_reference(
    smollm2_path: Path, plain_texts: dict[str, tuple[int, ...]], name: str
) -> None:
    """By id, for every step of one answer; the reference knows neither pages nor graphs."""
    case = next(case for case in CASES if case["drafter"] == name and case["prompt"] == "math")
    folder = Path(drafter_path(name))
    checkpoint = open_checkpoint(smollm2_path)
    weights = destinations(checkpoint.spec, checkpoint.load_weights())
    embed = weights["model.embed_tokens.weight"]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    reference = ReferenceDrafter(config, read_tensors(folder / "model.safetensors"), embed, embed, dtype=np.float32)
    text = [*case["prompt_token_ids"], *plain_texts["math"]]
    steps = replay(reference, reference_residuals(CONFIG, weights, text, np.float32), text, len(case["prompt_token_ids"]), 7)
    assert [len(step.emitted) for step in steps] == case["tokens_per_step"]
    assert min(step.margin for step in steps) > 1e-3
    with open_smollm2(smollm2_path, str(folder), runner__async=False) as engine:
        runner: Any = engine.runner
        engine.submit(case["prompt_token_ids"], PARAMS)
        drafted = []
        while engine.has_unfinished:
            engine.step()
            drafted.append(tuple(runner.device.download(runner.buffers.state.draft_tokens)[0].tolist()))
    assert drafted[:-1] == [step.drafts for step in steps]
