"""The engine over Numba's CUDA simulator: every thread of every block of every kernel of a step, on the smallest of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.lang import SIMULATED
from runtime.engine import Engine
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_engine import Reference

pytestmark = pytest.mark.skipif(not SIMULATED, reason="this process has Numba without its simulator")

SMALL = TinyShape("qwen3", num_layers=1, hidden_size=32, intermediate_size=48, num_heads=2, num_kv_heads=1, num_likely_ids=8)
PROMPTS = [[3, 4, 5, 3, 4], [7]]
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)


def generate(model: Path, device: str) -> tuple[list[RequestOutput], int]:
    """Outputs, and the drafts that were verified on the way."""
    with Engine.from_config(
        {},
        model__source=str(model),
        device=device,
        mirror__poison=True,
        graphs__token_buckets=[4],
        scheduler={"max_num_seqs": 2, "max_model_len": 16, "max_num_batched_tokens": 4, "block_size": 4},
        speculator={"method": "ngram", "num_speculative_tokens": 1},
        run__chat=False,
    ) as engine:
        return engine.generate(PROMPTS, PARAMS), engine.scheduler.acceptance.num_draft_tokens


def test_the_simulator_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    """A prompt in two chunks beside a decode row, verify steps with drafts, requests that end in different steps."""
    model = write_tiny_checkpoint(tmp_path, SMALL)
    simulated, drafts = generate(tmp_path, "simulator")
    compiled, compiled_drafts = generate(tmp_path, "cpu")
    assert [output.token_ids for output in simulated] == [output.token_ids for output in compiled]
    assert [output.token_ids for output in simulated] == [Reference(model).generate(prompt, PARAMS, 16)[0] for prompt in PROMPTS]
    assert drafts == compiled_drafts > 0
