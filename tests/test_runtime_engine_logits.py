"""Logits of the scratch, step by step, against a plain NumPy forward of the whole sequence: every shape of model and of step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.transformer import DecoderTarget
from runtime.engine import Engine
from runtime.plan import StepPlan
from runtime.runner import Runner
from runtime.sampling import SamplingParams
from tests.reference_forward import reference_logits
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny

LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SHAPES = {
    "llama": TinyShape(),
    "llama-tied-sharded": TinyShape(tied=True, shards=3),
    "llama-linear-float16": TinyShape(rope_scaling={"rope_type": "linear", "factor": 2.0}, dtype="float16"),
    "llama-llama3": TinyShape(rope_scaling=LLAMA3),
    "llama-mha": TinyShape(num_heads=4, num_kv_heads=4, num_layers=3),
    "qwen2-sharded": TinyShape("qwen2", shards=2),
    "qwen2-tied-bfloat16": TinyShape("qwen2", tied=True, dtype="bfloat16"),
    "qwen3": TinyShape("qwen3"),
    "qwen3-tied-yarn": TinyShape("qwen3", tied=True, rope_scaling=YARN, shards=2),
    "qwen3-one-kv-head": TinyShape("qwen3", num_heads=6, num_kv_heads=1, hidden_size=48, head_dim=24),
}
LENGTHS = (1, 5, 12, 29)
NUM_NEW = 6


class Watcher:
    """Runs an engine synchronously and compares the logits that each step leaves with the reference."""

    def __init__(self, engine: Engine, model: TinyModel) -> None:
        assert isinstance(engine.runner, Runner)
        target = engine.runner._target
        assert isinstance(target, DecoderTarget)
        self.engine, self.model = engine, model
        self.device, self.logits = engine.runner.device, target.scratch.logits
        self.kinds: dict[str, int] = {"prefill": 0, "decode": 0, "accepted draft": 0}
        self._plans: list[StepPlan] = []
        self._expected: dict[str, Any] = {}
        launch = engine.runner.launch

        def remember(plan: StepPlan) -> Any:
            self._plans.append(plan)
            return launch(plan)

        engine.runner.launch = remember  # type: ignore[method-assign, assignment]

    def run(self, prompts: list[list[int]], max_tokens: int = NUM_NEW) -> None:
        generations = {}
        for prompt in prompts:
            generation = self.engine.submit(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
            generations[generation.request.request_id] = generation
        while self.engine.has_unfinished:
            before = {name: generation.request.num_tokens for name, generation in generations.items()}
            self.engine.step()
            logits = self.device.download(self.logits)
            row = 0
            for planned in self._plans.pop().rows:
                request = generations[planned.request_id].request
                tokens = (*request.prompt_token_ids, *request.output_token_ids)
                if planned.is_prefilling:
                    self._check(tokens[: planned.start_upper + planned.num_tokens], logits[row], "prefill")
                else:
                    # Behind the first rejected draft the rows belong to a sequence that never was.
                    for i in range(len(tokens) - before[planned.request_id]):
                        self._check(tokens[: before[planned.request_id] + i], logits[row + i], "accepted draft" if i else "decode")
                row += 1 + planned.num_drafts

    def _check(self, tokens: tuple[int, ...], logits: Any, kind: str) -> None:
        expected = reference_logits(self.model.config, self.model.tensors, tokens)[-1]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4, err_msg=f"{kind} row behind {len(tokens)} tokens")
        self.kinds[kind] += 1


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_prefill_and_decode_rows(tmp_path: Path, name: str, chunk: int) -> None:
    """Requests of several lengths in one batch, prompts in chunks of at most `chunk` tokens, blocks in no order."""
    model = write_tiny_checkpoint(tmp_path, SHAPES[name])
    rng = random.Random(f"{name} {chunk}")
    prompts = [[rng.randrange(3, 300) for _ in range(length)] for length in LENGTHS]
    with open_tiny(model.path, k=0, runner__async=False, scheduler__max_num_batched_tokens=chunk) as engine:
        rng.shuffle(engine.scheduler.blocks._free)
        watcher = Watcher(engine, model)
        watcher.run(prompts)
    # The step that ends a prefill makes the first token.
    assert watcher.kinds["decode"] == len(LENGTHS) * (NUM_NEW - 1)
    assert watcher.kinds["prefill"] >= sum(-(-length // chunk) for length in LENGTHS)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_logits_of_verify_rows(tmp_path: Path, block_size: int) -> None:
    """A model that repeats itself, so that drafts are accepted and their rows count."""
    model = write_tiny_checkpoint(tmp_path, LOOPING)
    prompts = [[3 + (i * i) % 20 for i in range(length)] for length in LENGTHS]
    settings = {"scheduler__block_size": block_size, "scheduler__max_num_batched_tokens": 16}
    with open_tiny(model.path, k=3, runner__async=False, **settings) as engine:
        random.Random(block_size).shuffle(engine.scheduler.blocks._free)
        watcher = Watcher(engine, model)
        watcher.run(prompts, max_tokens=24)
    assert watcher.kinds["accepted draft"] > 20


def test_the_watcher_would_see_one_wrong_block(tmp_path: Path) -> None:
    """A key cache with one position overwritten between two steps must not pass: the comparison above can fail."""
    model = write_tiny_checkpoint(tmp_path, TinyShape())
    with open_tiny(model.path, k=0, runner__async=False, poison=False) as engine:
        watcher = Watcher(engine, model)
        assert isinstance(engine.runner, Runner)
        layer = engine.runner._target.model.layers[0]  # type: ignore[attr-defined]
        step = engine.step

        def damaged() -> None:
            step()
            cache = watcher.device.download(layer.k_cache)
            cache[0, 2] = 3.0
            watcher.device.upload(layer.k_cache, cache)

        engine.step = damaged  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="decode row"):
            watcher.run([[5, 9, 11, 200, 7]])
