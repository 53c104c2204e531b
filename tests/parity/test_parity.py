"""The NumPy reference forward and the rotary table against Hugging Face transformers, on the CPU, in float32.

The suite compares the product with the reference; this file is what makes the reference trustworthy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.models.rope import rope_table
from tests.reference_forward import reference_logits
from tests.tiny_checkpoint import LINEAR, LLAMA3, YARN, TinyShape, write_tiny_checkpoint

pytestmark = pytest.mark.parity

SHAPES = {
    "llama": TinyShape("llama"),
    "llama-tied-sharded": TinyShape("llama", tied=True, shards=3),
    "llama-llama3": TinyShape("llama", rope_scaling=LLAMA3, shards=2),
    "llama-llama3-tied": TinyShape("llama", rope_scaling=LLAMA3, tied=True),
    "llama-linear": TinyShape("llama", rope_scaling=LINEAR, num_kv_heads=1),
    "qwen2": TinyShape("qwen2", shards=2),
    "qwen2-tied": TinyShape("qwen2", tied=True, num_kv_heads=4),
    "qwen3": TinyShape("qwen3"),
    "qwen3-tied-sharded": TinyShape("qwen3", tied=True, shards=3),
    "qwen3-yarn": TinyShape("qwen3", rope_scaling=YARN),
    "qwen3-yarn-tied-sharded": TinyShape("qwen3", rope_scaling=YARN, tied=True, shards=2),
    "qwen3-yarn-own-factor": TinyShape("qwen3", rope_scaling={**YARN, "attention_factor": 1.3, "beta_fast": 8.0}),
    "llama-bfloat16": TinyShape("llama", dtype="bfloat16"),
}
TOKENS = np.random.default_rng(7).integers(0, 300, 150)  # longer than the 64 positions that the scalings stretch


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, PreTrainedModel]:
    tiny = write_tiny_checkpoint(tmp_path / "model", request.param)
    model = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32, attn_implementation="eager")
    return tiny, model.eval()


def test_logits_equal(pair: tuple[Any, PreTrainedModel]) -> None:
    tiny, model = pair
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS[None])).logits[0].numpy()
    for dtype in (np.float32, np.float64):
        ours = reference_logits(tiny.config, tiny.tensors, TOKENS, dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(ours.argmax(-1), theirs.argmax(-1))


def test_rotary_table_equal(pair: tuple[Any, PreTrainedModel]) -> None:
    tiny, model = pair
    spec = open_checkpoint(tiny.path).spec
    length, half = 250, spec.head_dim // 2
    table = rope_table(spec.rope, spec.head_dim, length)
    with torch.no_grad():
        cos, sin = model.model.rotary_emb(torch.zeros(1, length, 8), torch.arange(length)[None])
    np.testing.assert_allclose(table[:, :half], cos[0, :, :half], rtol=1e-4, atol=5e-5)
    np.testing.assert_allclose(table[:, half:], sin[0, :, :half], rtol=1e-4, atol=5e-5)


def test_config_saved_by_transformers_reads_the_same(pair: tuple[Any, PreTrainedModel], tmp_path: Path) -> None:
    """transformers 5 writes rope_parameters where 4 wrote rope_theta and rope_scaling; both must mean one spec."""
    tiny, model = pair
    AutoTokenizer.from_pretrained(tiny.path).save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved")
    assert open_checkpoint(tmp_path / "saved").spec == open_checkpoint(tiny.path).spec
