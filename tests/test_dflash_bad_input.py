"""Drafters that cannot be used, through the real command: exit code 2, what is wrong and what to do, nothing on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from typer.testing import CliRunner

from runtime.cli import app
from tests.remedies import says_what_to_do
from tests.test_runtime_engine_bad_input import TINY
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, TinyDrafter, write_tiny_drafter

TARGET = TinyShape(num_layers=4)
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), TARGET).path


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Callable[..., Any]:
    """`draftgraph run` with the drafter in `drafter`, which the configuration names from its own folder."""
    speculator = {"method": "dflash", "draft_source": "drafter", "num_speculative_tokens": 3}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(TINY | {"model": {"source": str(model)}, "speculator": speculator}), encoding="utf-8")
    return lambda *arguments: CliRunner().invoke(app, ["run", str(path), "--quiet", *arguments])


@pytest.fixture
def refused(run: Callable[..., Any]) -> Refused:
    def message(*arguments: str) -> str:
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert says_what_to_do(result.stderr), result.stderr
        return " ".join(result.stderr.split())

    return message


def write(tmp_path: Path, target: TinyShape = TARGET, **shape: Any) -> TinyDrafter:
    return write_tiny_drafter(tmp_path / "drafter", target, DrafterShape(**shape))


def change(drafter: TinyDrafter, **fields: Any) -> None:
    config = {**drafter.config, **fields}
    (drafter.path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def test_a_drafter_that_fits_is_found_beside_the_configuration(tmp_path: Path, run: Callable[..., Any]) -> None:
    write(tmp_path)
    result = run("--json")
    assert result.exit_code == 0, result.output
    assert any("accept" in key for key in json.loads(result.stdout)["totals"])


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (replace(TARGET, hidden_size=128), "hidden_size = 128: the target has 64; this drafter was made for another target"),
        (replace(TARGET, vocab_size=TARGET.vocab_size + 8), f"the target has {TARGET.vocab_size}; this drafter was made for"),
        (replace(TARGET, num_layers=5), "num_target_layers = 5: the target has 4"),
    ],
)
def test_a_drafter_of_another_target(tmp_path: Path, refused: Refused, target: TinyShape, text: str) -> None:
    write(tmp_path, target)
    assert text in refused()


@pytest.mark.parametrize("taps", [(0, 3), (0, 9), (-1, 2)])  # the last block is no tap
def test_taps_out_of_range(tmp_path: Path, refused: Refused, taps: tuple[int, ...]) -> None:
    write(tmp_path, taps=taps)
    assert "outside 0..2; the target has 4 blocks, and what leaves the last one is no tap" in refused()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"architectures": ["EagleLlamaForCausalLM"]}, "architectures = ['EagleLlamaForCausalLM'] is no drafter of"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id is missing: the id whose embedding fills the slots"),
        ({"block_size": 3}, "block_size = 3: drafts at most 2 tokens, speculator.num_speculative_tokens = 3; lower it"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"architectures": ["DFlash2DraftModel"]}, 'set architectures to ["DFlashDraftModel"], or put the weights there'),
        ({"dflash_config": {"target_layer_ids": [2, 2], "mask_token_id": 5}}, "target_layer_ids = [2, 2]: [2] more than once"),
    ],
)
def test_a_configuration_that_says_something_else(tmp_path: Path, refused: Refused, fields: dict[str, Any], text: str) -> None:
    change(write(tmp_path), **fields)
    assert text in refused()


def test_a_drafter_of_shorter_sequences(tmp_path: Path, run: Callable[..., Any], refused: Refused) -> None:
    change(write(tmp_path), max_position_embeddings=50)
    assert "scheduler.max_model_len = 51: above the drafter's 50 positions; lower it, set it to auto" in refused(
        "--set", "scheduler.max_model_len=51"
    )
    result = run("--set", "scheduler.max_model_len=auto", "--prompt", "the cat", "--max-tokens", "200", "--json")
    assert result.exit_code == 0, result.output
    (answer,) = json.loads(result.stdout)["results"]
    assert answer["finish_reason"] == "length"
    assert 30 < len(answer["token_ids"]) < 50


def test_a_truncated_file(tmp_path: Path, refused: Refused) -> None:
    weights = write(tmp_path).path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    message = refused()
    assert "model.safetensors" in message
    assert "truncated" in message


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_weights_that_are_not_finite(tmp_path: Path, refused: Refused, part: str) -> None:
    drafter, model = write(tmp_path), write_tiny_checkpoint(tmp_path / "model", TARGET)
    folder, tensors = (model.path, model.tensors) if part == "target" else (drafter.path, drafter.tensors)
    name = list(tensors)[-1]
    save_file({**tensors, name: np.full_like(tensors[name], np.nan)}, folder / "model.safetensors")
    message = refused("--set", f"model.source={model.path}")
    assert f"{folder / 'model.safetensors'}: tensor '{name}' holds nan: weights must be finite numbers" in message


def test_no_drafter_at_all(tmp_path: Path, refused: Refused) -> None:
    assert f"speculator.draft_source = {tmp_path / 'drafter'}: no such file or folder" in refused()
    (tmp_path / "drafter").mkdir()
    assert "config.json: is missing" in refused()
    (tmp_path / "file").write_text("x")
    assert "must be a folder with config.json and model.safetensors" in refused(
        "--set", f"speculator.draft_source={tmp_path / 'file'}"
    )
