"""The command line over the tiny model: a configuration file for it, and what a refused command says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runtime.cli import app
from runtime.cli_usage import exit_code_of


def write_tiny_config(folder: Path, model: Path) -> str:
    """Path of a configuration of a tiny model: two requests of 64 tokens at most on a CPU, and a prompt of five."""
    path = folder / "config.yaml"
    sizes = {"max_num_seqs": 2, "max_model_len": 64, "max_num_batched_tokens": 32, "block_size": 4}
    run = {"chat": False, "prompts": ["hello"]}
    path.write_text(yaml.safe_dump({"model": {"source": str(model)}, "device": "cpu", "scheduler": sizes, "run": run}))
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """stderr of a command that ends with exit code 2 and nothing on stdout."""
    code = exit_code_of(app, arguments)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    return " ".join(captured.err.split())
