"""Prompts longer than a step, and longer than a tile of pairs, through whole engines: logits against a plain NumPy forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.transformer import DecoderTarget
from runtime.device import open_device
from runtime.sampling import SamplingParams
from tests.reference_forward import reference_logits
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_engine import open_tiny

SHAPES = {"heads of 64": TinyShape(head_dim=64), "heads of 128, normed": TinyShape("qwen3", head_dim=128)}
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 90, 200)]


@pytest.fixture(scope="module", params=list(SHAPES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(Path(tmp_path_factory.mktemp("long")), SHAPES[request.param])


def last_logits(model: TinyModel, chunk: int, *, others: bool = False, **settings: Any) -> np.ndarray:
    """Of the last row of the prompt, prefilled in chunks; others: short requests are decoded beside it."""
    sizes: dict[str, Any] = {
        "scheduler__max_model_len": 224,
        "scheduler__max_num_batched_tokens": chunk,
        "scheduler__block_size": 16,
    }
    with open_tiny(model.path, k=0, runner__async=False, graphs__ops="fused", **sizes, **settings) as engine:
        for prompt in ([5, 6, 7], [9]) if others else ():
            engine.submit(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=1, ignore_eos=True))
        while not generation.request.output_token_ids:
            engine.step()
        target = engine.runner._target  # type: ignore[attr-defined]
        assert isinstance(target, DecoderTarget)
        row = 2 if others else 0
        return engine.runner.device.download(target.scratch.logits)[row]  # type: ignore[attr-defined]


def check_close(model: TinyModel, found: np.ndarray, tolerance: float) -> None:
    expected = reference_logits(model.config, model.tensors, PROMPT)[-1]
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("chunk", "others"), [(48, False), (96, True), (208, False)])
def test_a_prompt_in_chunks_is_its_reference(model: TinyModel, chunk: int, others: bool) -> None:
    check_close(model, last_logits(model, chunk, others=others), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "chunk", "others"), [("bfloat16", 96, True), ("bfloat16", 208, False), ("float16", 208, False)])
def test_in_sixteen_bits_on_a_gpu(model: TinyModel, dtype: str, chunk: int, others: bool) -> None:
    device = open_device("cuda", poison=True)
    found = last_logits(model, chunk, others=others, on=device, device="cuda", model__dtype=dtype)
    check_close(model, found, {"float16": 4e-3, "bfloat16": 3e-2}[dtype])


@pytest.mark.gpu
def test_batch_invariant_logits_do_not_depend_on_the_chunks_of_a_prompt(model: TinyModel) -> None:
    """Bit for bit, whichever launches a chunk is, alone and beside other requests."""
    settings: dict[str, Any] = {"device": "cuda", "model__dtype": "bfloat16", "numerics": "batch_invariant"}
    found = [
        last_logits(model, chunk, others=others, on=open_device("cuda", poison=True), **settings).tobytes()
        for chunk, others in ((48, False), (208, False), (144, True))
    ]
    assert found[1] == found[0]
    assert found[2] == found[0]
