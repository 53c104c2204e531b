"""A token whose values float16 cannot hold, drafted in every step and never right: the texts are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime.device import open_device
from runtime.sampling import SamplingParams
from tests.candidate_proposer import drafts_from
from tests.tiny_checkpoint import VOCAB_SIZE, write_tiny_checkpoint
from tests.tiny_engine import LOOPING, Arrival, drive, open_tiny

TOKEN, CHANNEL = 250, 5
"""Nothing of the texts below; and what it alone has in its embedding, for layer 0 to make its values of."""
ARRIVALS = [Arrival(prompt, SamplingParams(max_tokens=24, ignore_eos=True)) for prompt in ([7, 8, 9], [10, 11], [5] * 9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values of 480,000, of weights that are all below 65,504: sqrt(64) from the norm, times 60,000."""
    written = write_tiny_checkpoint(tmp_path_factory.mktemp("overflow") / "model", replace(LOOPING, head_dim=64))
    tensors = {name: values.copy() for name, values in written.tensors.items()}
    embed = tensors["model.embed_tokens.weight"]
    assert embed.shape[1] == 64
    embed[:, CHANNEL] = 0
    embed[TOKEN] = 0
    embed[TOKEN, CHANNEL] = 1
    tensors["model.layers.0.input_layernorm.weight"][CHANNEL] = 1
    tensors["model.layers.0.self_attn.v_proj.weight"][:, CHANNEL] = 60_000
    save_file(tensors, written.path / "model.safetensors")
    return written.path


PLACES = [("cpu", "float32"), *(pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in ("float16", "bfloat16"))]


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_draft_that_overflows_changes_no_text(model: Path, device: Any, dtype: str, k: int) -> None:
    settings = {"device": device, "model__dtype": dtype, "numerics": "batch_invariant"}
    with open_tiny(model, k=0, on=open_device(device, poison=True), **settings) as engine:
        plain = [output.token_ids for output in drive(engine, ARRIVALS)]
    assert all(TOKEN not in tokens and len(tokens) == 24 for tokens in plain)
    always = np.full((VOCAB_SIZE, 1), TOKEN, np.int32)
    with (
        drafts_from(always, np.ones((VOCAB_SIZE, 1), np.float32)),
        open_tiny(model, k=k, on=open_device(device, poison=True), **settings) as engine,
    ):
        outputs = drive(engine, ARRIVALS)
        drafted = engine.scheduler.acceptance
    assert [(output.token_ids, output.finish_reason) for output in outputs] == [(tokens, "length") for tokens in plain]
    assert drafted.num_draft_tokens > 20 * k
    assert drafted.num_accepted_tokens == 0
