"""Training as a command, on the CPU: a whole run whose drafter the engine then uses, and every mistake by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.errors import ConfigError, DraftgraphError
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import TinyModel
from tests.tiny_engine import open_tiny

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra train)")
pytestmark = pytest.mark.parity

from runtime.speculators.train.run import TrainingRun  # noqa: E402
from runtime.speculators.train.settings import load_settings  # noqa: E402
from tests.train_rig import PROMPTS  # noqa: E402


def write_config(folder: Path, model: TinyModel) -> Path:
    (folder / "held_out.yaml").write_text("talk: [what is this thing, how are you]\nstory: [the cat sat]\n")
    (folder / "own.txt").write_text("what did the man say at the gate\nwhere is the dog\n")
    path = folder / "train.yaml"
    path.write_text(f"""
target: {{source: {model.path}}}
drafter: {{taps: [0, 1, 2], selector_rank: 8, selector_top_k: 8}}
data: {{seconds: 30, max_tokens: 1500, batch: 16, answer_tokens: [32], max_prompt_tokens: 100}}
training: {{steps: 25, row_length: 128, rows: 4, anchors: 8, learning_rate: 0.003}}
validation: {{prompts: {folder / "held_out.yaml"}, max_tokens: 30, every_seconds: 1}}
output: {{folder: {folder / "out"}}}
""")
    return path


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtime.speculators.train", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).resolve().parents[2],
    )


def test_a_whole_run_ends_in_a_drafter_that_the_engine_uses(model: TinyModel, tmp_path: Path) -> None:
    config = write_config(tmp_path, model)
    own = ["--prompts", str(tmp_path / "own.txt")]
    written = train(str(config), *own, "--output", str(tmp_path / "text"), "--text-only", "--quiet")
    assert written.returncode == 0, written.stderr
    also = ["--set", f"data.also=[{tmp_path / 'text' / 'documents'}]"]
    done = train(str(config), *own, *also, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["steps"] == 25
    assert summary["data"]["answer_tokens"] > json.loads(written.stdout)["documents_by_kind"]["file"]
    assert summary["data"]["runs"] == 2
    assert "file" in summary["data"]["documents_by_kind"]
    assert set(summary["acceptance"]) == {"k=4", "k=7"}
    assert set(summary["acceptance"]["k=7"]["by_kind"]) == {"talk", "story"}
    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text()) == summary
    drafter = {"speculator__method": "dflash", "speculator__draft_source": str(out / "drafter")}
    prompts: list[Any] = PROMPTS
    with open_tiny(model.path, k=7, **drafter) as engine:
        drafted = engine.generate(prompts, SamplingParams(max_tokens=16))
    with open_tiny(model.path, k=0) as engine:
        plain = engine.generate(prompts, SamplingParams(max_tokens=16))
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    again = train(str(config), *own, *also, "--json", "--quiet")
    assert again.returncode == 0, again.stderr
    # Nothing was left to do: neither text nor steps were added.
    assert json.loads(again.stdout)["steps"] == 25
    assert json.loads(again.stdout)["data"] == summary["data"]
    other = train(str(config), *own, "--set", "training.learning_rate=0.1", "--quiet")
    assert other.returncode == 2
    assert "holds a run of other settings (training.learning_rate differ)" in other.stderr


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (["--set", "training.rate=3"], "training.rate = 3: unknown key"),
        (["--set", "training.steps=null"], "training: give seconds or steps"),
        (["--set", "drafter.taps=[0, 3]"], "drafter.taps = [0, 3]: [3] outside 0..2"),
        (["--set", "drafter.taps=[1, 1]"], "drafter.taps = [1, 1]: each block has columns of fc of its own; name distinct blocks"),
        (["--set", "target.source=/nowhere"], "target.source = /nowhere: no such file or folder"),
        (["--set", "drafter.start=/nowhere"], "drafter.start = /nowhere: config.json cannot be read"),
        (["--set", "validation.prompts=/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--set", "device=cuda"], "device = cuda: PyTorch finds no CUDA device"),
        (["--prompts", "/nowhere.txt"], "prompt file /nowhere.txt: no such file"),
    ],
)
def test_mistakes_are_named(model: TinyModel, tmp_path: Path, changes: list[str], text: str) -> None:
    done = train(str(write_config(tmp_path, model)), "--quiet", *changes)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def no_run(folder: Path, model: TinyModel, *overrides: str) -> str:
    """What a run of these settings says instead of writing text; nothing of it is left in its folder."""
    with pytest.raises(DraftgraphError) as error:
        TrainingRun(load_settings(write_config(folder, model), overrides))
    assert not any((folder / "out").glob("*"))
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("drafter.mask_token_id=300", "mask_token_id = 300: token ids must lie in [0, vocab_size = 300)"),
        ("drafter.conv_group_size=7", "conv_group_size = 7: must divide hidden_size = 64"),
        ("data.answer_tokens=[1]", "data.answer_tokens[0] = 1: must be greater than or equal to 2"),
        ("data.answer_tokens=[]", "data.answer_tokens = []: must have at least 1 item"),
        ("data.answer_tokens=[20, 160]", "prompt and answer are above the target's 256 positions; lower one of them"),
        ("training.row_length=100000", "training.row_length = 100000: must be less than or equal to 65536"),
        ("validation.max_tokens=10000", "that is more than the 196 positions of this run; shorten it or raise"),
        ("validation.prompts=/nowhere", "prompts by kind = /nowhere: no such file"),
        ("output.folder=/dev/null", "output.folder = /dev/null: cannot be written: "),
    ],
)
def test_what_no_run_could_use_is_told_before_text_is_written(model: TinyModel, tmp_path: Path, override: str, text: str) -> None:
    assert text in no_run(tmp_path, model, override)
    assert TrainingRun(load_settings(write_config(tmp_path, model))).config["vocab_size"] == 300


def test_heads_that_leave_no_room_for_a_turn_are_dropped(model: TinyModel, tmp_path: Path) -> None:
    """A beginning that is longer than a prompt may be was more than the cache of the generator held."""
    sources = "data.sources={seeded: 1, magpie: 0, template: 0, passage: 0, file: 0}"
    short = ["data.max_prompt_tokens=20", "data.answer_tokens=[2]", sources]
    run = TrainingRun(load_settings(write_config(tmp_path, model), short))
    with pytest.raises(ConfigError, match=r"data\.sources\.seeded: the target wrote no usable prompt; raise data\."):
        run.write_text()


def test_a_drafter_that_diverged_is_not_saved(model: TinyModel, tmp_path: Path) -> None:
    run = TrainingRun(load_settings(write_config(tmp_path, model)))
    weights = {"a": torch.zeros(2), "b": torch.full((2,), float("nan"))}
    trainer: Any = SimpleNamespace(averaged=SimpleNamespace(exported=lambda table: weights), table=None, step=7)
    with pytest.raises(ConfigError, match=r"learning_rate = 0\.003: the drafter diverged by step 7, NaN or infinity in 1 of its"):
        run._save(trainer)
    assert not (tmp_path / "out" / "drafter").exists()
