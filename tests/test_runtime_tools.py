"""Modules that are commands of their own, beside `draftgraph`: a mistake is one line and exit code 2, as it is there."""

from __future__ import annotations

import pytest

from runtime.cuda_probe import cuda_unavailable
from tests.cli_process import process


@pytest.mark.skipif(cuda_unavailable() is None, reason="this machine has a GPU, and they would measure")
@pytest.mark.parametrize("arguments", [["kernels"], ["sampling"], ["drafter", "configs/tiny.yaml"]], ids=lambda value: value[0])
def test_a_bench_without_a_gpu_says_so_in_a_line(arguments: list[str]) -> None:
    result = process(*arguments[1:], module=f"runtime.bench_{arguments[0]}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "pip install draftgraph[cu12]" in result.stderr or "CUDA" in result.stderr


@pytest.mark.parametrize("name", ["acceptance", "average"])
def test_a_tool_of_the_training_says_what_its_command_line_lacks(name: str) -> None:
    result = process(module=f"runtime.speculators.train.{name}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: missing argument")
    assert result.stderr.count("\n") == 1


def test_a_choice_that_is_none_is_told_by_what_it_must_be() -> None:
    result = process("profile", "configs/tiny.yaml", "--trace", "foo", module="runtime.cli")
    assert result.returncode == 2
    assert "error: --trace = foo: must be one of 'graph', 'node'; see" in result.stderr
