"""Host memory while weights go to a GPU: below 1.3 times the largest shard, measured on the process that loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="largest resident sizes are read from Linux's /proc")

SHARE = 1.3
SMALL = TinyShape(dtype="bfloat16", shards=3, vocab_size=16384, hidden_size=512, intermediate_size=2048, num_heads=8)
LARGE = TinyShape(dtype="bfloat16", shards=3, vocab_size=49152, hidden_size=2048, intermediate_size=8192, num_heads=16)


def load(folder: Path, shape: TinyShape, kind: str) -> dict[str, Any]:
    path = write_tiny_checkpoint(folder, shape).path
    command = [sys.executable, "-m", "tests.load_peak", str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert measured["read"] > 0.99 * measured["all"]
    assert measured["all"] > 2 * measured["largest_shard"], "one shard must be much less than all of it"
    return measured


def test_host_memory_while_loading(tmp_path: Path) -> None:
    measured = load(tmp_path, SMALL, "idle")
    assert measured["took"] < SHARE * measured["largest_shard"], measured


@pytest.mark.gpu
def test_host_memory_while_loading_onto_a_gpu(tmp_path: Path, record_property: Any) -> None:
    measured = load(tmp_path, LARGE, "cuda")
    share = measured["took"] / measured["largest_shard"]
    record_property(f"host memory while loading {measured['all'] / 1e9:.2f} GB in 3 shards", f"{share:.2f} of the largest shard")
    assert share < SHARE, measured
