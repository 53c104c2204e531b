"""The engine over Numba's CUDA simulator: every thread of every block of every kernel of a step, on the smallest of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.lang import SIMULATED
from runtime.device import open_device
from runtime.engine import Engine
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams
from tests.planted_nan import plant_nan
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_engine import Reference

pytestmark = pytest.mark.skipif(not SIMULATED, reason="this process has Numba without its simulator")

SMALL = TinyShape("qwen3", num_layers=1, hidden_size=32, intermediate_size=48, num_heads=2, num_kv_heads=1, num_likely_ids=8)
PROMPTS = [[3, 4, 5, 3, 4], [7]]
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)


def generate(model: Path, name: str, bad: int | None = None) -> tuple[list[RequestOutput], int]:
    """Outputs, and the drafts that were verified on the way. bad: a token that makes NaN."""
    device = open_device(name, poison=True)
    with (
        pytest.MonkeyPatch.context() as patch,
        Engine.from_config(
            {},
            on_device=device if bad is None else plant_nan(patch, device, bad),
            model__source=str(model),
            device=name,
            mirror__poison=True,
            graphs__token_buckets=[4],
            scheduler={"max_num_seqs": 2, "max_model_len": 16, "max_num_batched_tokens": 4, "block_size": 4},
            speculator={"method": "ngram", "num_speculative_tokens": 1},
            run__chat=False,
        ) as engine,
    ):
        return engine.generate(PROMPTS, PARAMS), engine.scheduler.acceptance.num_draft_tokens


def test_the_simulator_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    """A prompt in two chunks beside a decode row, verify steps with drafts, requests that end in different steps."""
    model = write_tiny_checkpoint(tmp_path, SMALL)
    simulated, drafts = generate(tmp_path, "simulator")
    compiled, compiled_drafts = generate(tmp_path, "cpu")
    assert [output.token_ids for output in simulated] == [output.token_ids for output in compiled]
    assert [output.token_ids for output in simulated] == [Reference(model).generate(prompt, PARAMS, 16)[0] for prompt in PROMPTS]
    assert drafts == compiled_drafts > 0


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's of NaN, in every kernel on the way
def test_a_row_of_nothing_is_reported(tmp_path: Path) -> None:
    """From the second token of the first text on, in greedy steps: the other text is whole."""
    model = write_tiny_checkpoint(tmp_path, SMALL)
    texts = [Reference(model).generate(prompt, PARAMS, 16)[0] for prompt in PROMPTS]
    bad = texts[0][1]
    assert bad not in (*PROMPTS[0], *PROMPTS[1], *texts[1])
    for device in ("simulator", "cpu"):
        outputs, _ = generate(tmp_path, device, bad)
        assert [output.token_ids for output in outputs] == [texts[0][:2], texts[1]]
        assert [output.finish_reason for output in outputs] == ["error", "length"]
