"""How commands end, by process: exit codes, the message on stderr, and no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from runtime.cli import app
from runtime.cli_session import exits
from runtime.cli_usage import exit_code_of
from runtime.mirror_errors import OutcomeError
from tests.cli_process import ROOT, TEXT, process, pythons_own_handler, write_config
from tests.fake_engine import ANSWERS

config = pytest.fixture(write_config)
ctrl_c = pytest.fixture(pythons_own_handler)


def assert_user_error(result: subprocess.CompletedProcess[str], message: str) -> None:
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.yaml"], "error: config = missing.yaml: no such file"),
        (["run", "CONFIG", "--set", "sheduler.max_num_seqs=1"], "unknown key; did you mean scheduler?"),
        (["run", "CONFIG", "--set", "scheduler.max_num_seqs=x"], "scheduler.max_num_seqs = 'x': must be"),
        (["run", "CONFIG", "--set", "speculator.num_speculative_tokens=-1"], "num_speculative_tokens = -1"),
        (
            ["run", "CONFIG", "--set", "speculator.method=ngram", "--set", "scheduler.max_num_batched_tokens=4"],
            "verifying one request takes 5 tokens",
        ),
        (["run", "CONFIG", "--set", "sampling.temperature=-1"], "sampling.temperature = -1: must be 0 or a number in 0.01..100"),
        (["run", "CONFIG", "--max-tokens", "0"], "sampling.max_tokens = 0"),
        (["run", "CONFIG", "--prompt", ""], "prompt 1: empty"),
        (["run", "CONFIG", "--set", "run.prompts=[]"], "no prompt: give --prompt"),
        (["run", "CONFIG", "--prompt-file", "missing.txt"], "prompt file missing.txt: no such file"),
        (["run", "CONFIG", "--prompt-file", "LATIN1"], "line 2: invalid UTF-8 at byte 6"),
        (["run", "CONFIG", "--prompt-file", "JSON"], "malformed JSON"),
        (["info", "CONFIG", "--set", "model.source=broken"], "error: model.source = broken: truncated at byte 7"),
        (["bench", "CONFIG", "--json", "/nowhere/b.json", "--repeats", "1"], "cannot be written"),
        (["run"], "CONFIG"),
        (["run", "CONFIG", "--frobnicate"], "--frobnicate"),
        (["run", "CONFIG", "--device", "cuda"], "--device; a configuration key is set by --set device=cuda; see"),
        (["info", "CONFIG", "--max-num-seqs=4"], "; a configuration key is set by --set scheduler.max_num_seqs=4; see"),
        (["frobnicate"], "frobnicate"),
        (["bench", "CONFIG", "--repeats", "0"], "--repeats = 0: must be greater than or equal to 1; see"),
        (["bench", "CONFIG", "--repeats", "2", "--repeats", "0"], "error: --repeats = 0: must be greater"),
        (["bench", "CONFIG", "--repeats=x", "--repeats", "y"], "error: --repeats = y: must be an integer"),
        (["bench", "CONFIG", "--concurrency", "1", "--concurrency", "0", "--concurrency=2"], "error: --concurrency = 0: must be"),
        (["gates", "--device", "cpu", "--device", "tpu"], "error: --device = tpu: must be one of 'cpu', 'cuda'"),
        (
            [
                *("info", "CONFIG", "--set", "scheduler.max_num_batched_tokens=4", "--set", "speculator.method=ngram"),
                *("--set", "speculator.num_speculative_tokens=auto"),
            ],
            "speculator.num_speculative_tokens = 'auto': up to 7 drafts, and verifying one request takes 8 tokens, above "
            "scheduler.max_num_batched_tokens = 4; raise that to 8, or set a number of 3 or less",
        ),
        (["bench", "CONFIG", "--concurrency", "1", "99"], "--concurrency 99: above scheduler.max_num_seqs = 8"),
        (["bench", "CONFIG", "--concurrency", "9" * 20], "would wait in line; lower it, at most 4096 run at a time"),
        (["bench", "CONFIG", "8"], "argument 8: a number of requests stands behind --concurrency"),
        (["bench", "--concurrency", "1", "2"], "CONFIG: give one configuration file, got none"),
        (["bench", "CONFIG", "--concurrency", "1", "0"], "--concurrency 0: must be at least 1"),
        (["bench", "CONFIG", "--concurrency", "1", "--max-concurrency", "1"], "--concurrency and --max-concurrency"),
        (["bench", "CONFIG", "--output-len", "4", "--max-tokens", "4"], "--output-len and --max-tokens"),
        (["bench", "CONFIG", "--input-len", "4", "--prompt", "a"], "leave out --prompt"),
        (
            ["bench", "CONFIG", "--input-len", "20", "--output-len", "45", "--set", "scheduler.max_model_len=64"],
            "lower --output-len to 44",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_users_mistake_is_a_message_and_code_2(
    config: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "latin1.txt").write_bytes("fine\ncaf\xe9".encode("latin-1").replace(b"caf", b"a"))
    (tmp_path / "bad.json").write_text('["a",')
    paths = {"CONFIG": config, "LATIN1": str(tmp_path / "latin1.txt"), "JSON": str(tmp_path / "bad.json")}
    result = process(*(paths.get(argument, argument) for argument in arguments))
    assert_user_error(result, message)


def test_a_prompt_that_is_no_utf8_on_the_command_line(config: str) -> None:
    result = process("run", config, "--prompt", os.fsdecode(b"a\xff"))
    assert_user_error(result, "prompt 1: invalid UTF-8")


def test_all_mistakes_of_a_config_are_in_one_message(config: str) -> None:
    result = process("run", config, "--set", "device=gpu", "--set", "graphs.mode=none")
    assert_user_error(result, "2 mistakes")


def test_the_module_runs_as_a_program() -> None:
    result = process("--version", module="runtime.cli")
    assert result.returncode == 0
    assert result.stdout.startswith("draftgraph ")


def test_ctrl_c_shows_what_there_is_and_ends_with_130(config: str) -> None:
    result = process("run", config, "-p", "interrupt", "-p", "other")
    assert result.returncode == 130
    assert result.stdout == f"[1/2] interrupt\n{ANSWERS[0]}\n"
    assert result.stderr.rstrip().endswith("| interrupted")
    assert "2 new tokens" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_with_json_still_prints_one_object(config: str) -> None:
    result = process("run", config, "-p", "other", "-p", "interrupt", "--json")
    assert result.returncode == 130
    first, second = json.loads(result.stdout)["results"]
    assert first["finish_reason"] == second["finish_reason"] == "cancelled"
    assert first["text"] == second["text"] == ANSWERS[0]
    assert second["token_ids"] == [10, 11]


def test_ctrl_c_from_outside_while_text_streams(config: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fake_engine", "run", config, "-p", "slow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as running:  # fmt: skip
        assert running.stdout is not None
        # The first piece arrives while the answer is still being written: it is streamed.
        start = time.monotonic()
        assert running.stdout.read(len(ANSWERS[0])) == ANSWERS[0].encode()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert not rest.decode().endswith(ANSWERS[-1] + "\n")
    assert b"Traceback" not in errors
    assert time.monotonic() - start < 20


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("error", "pressed", "code", "said"),
    [
        (RuntimeError("no compiled object yet"), True, 130, "interrupted\n"),
        (RuntimeError("no compiled object yet"), False, None, ""),
        (OutcomeError("collect in order"), True, 130, "interrupted\n"),
        (OutcomeError("collect in order"), False, 2, "error: collect in order\n"),
    ],
)
def test_an_interrupt_that_comes_back_as_another_error(
    capsys: pytest.CaptureFixture[str], error: Exception, pressed: bool, code: int | None, said: str
) -> None:
    """LLVM's callbacks into Python swallow a KeyboardInterrupt; Numba then fails over the code that it did not get."""
    @exits()
    def command() -> None:
        if pressed:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise error

    with pytest.raises(RuntimeError) as caught:
        command()
    assert getattr(caught.value, "exit_code", None) == code
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_help_to_a_full_disk_is_a_message(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exit_code_of(app, ["--help"]) == 2
        assert capfd.readouterr().err == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("arguments", [[], ["-q"], ["--json"]], ids=str)
def test_answers_survive_a_stderr_that_takes_nothing(config: str, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tests.fake_engine", "run", config, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=full, cwd=ROOT, env=environment, check=False, timeout=60, encoding="utf-8"
        )
    assert result.returncode == 0
    assert TEXT in result.stdout


def test_memory_that_is_not_there_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    @exits()
    def command() -> None:
        raise MemoryError("Unable to allocate 7. TiB")

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith("error: out of memory: Unable to allocate 7. TiB; lower scheduler.max_num_seqs")


def test_a_closed_pipe_is_quiet(config: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fake_engine", "run", config, "-p", "slow", "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as running:  # fmt: skip
        assert running.stdout is not None
        running.stdout.read(1)
        running.stdout.close()
        assert running.stderr is not None
        errors = running.stderr.read()
        running.wait(timeout=30)
    assert running.returncode == 141
    assert errors == b""


@pytest.mark.parametrize("arguments", [["run"], ["run", "-p", "slow", "--json"], ["info"]], ids=" ".join)
def test_a_closed_stdout_is_a_mistake(config: str, arguments: list[str]) -> None:
    """What is asked for would go nowhere: told before any work, and not with the code of what is done."""
    command = f'exec "{sys.executable}" -m tests.fake_engine {arguments[0]} "{config}" {" ".join(arguments[1:])} >&-'
    result = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False, timeout=30,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "error: stdout is closed: what is asked for would go nowhere; give it a place, e.g. > /dev/null\n"


def test_a_terminal_that_cannot_show_a_character_gets_a_question_mark(config: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.fake_engine", "run", config, "-q"],
        capture_output=True, cwd=ROOT, env=environment, check=False, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0
    assert result.stdout.decode() == TEXT.replace("🙂", "?") + "\n"


@pytest.mark.parametrize(("device", "value"), [("simulator", "1"), ("cpu", "0")])
def test_the_simulator_is_switched_on_before_the_engine_is_imported(config: str, device: str, value: str) -> None:
    result = process("info", config, "--set", f"device={device}", "--json", "-q")
    assert json.loads(result.stdout)["device"] == {"name": device, "simulator": value}


def test_the_command_line_itself_imports_neither_numba_nor_the_engine() -> None:
    code = "import sys, runtime.cli; print([name for name in ('numba', 'runtime.engine') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout == "[]\n"
