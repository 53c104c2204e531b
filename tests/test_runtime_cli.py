"""The command line: what goes to stdout and to stderr, exit codes, and no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from runtime.cli import app
from runtime.cli_session import exits
from runtime.cli_usage import exit_code_of
from runtime.metrics import AcceptanceStats
from runtime.report import RequestOutput, RunRecord, StreamEvent, render_info, stats_line, totals
from runtime.sampling import SamplingParams
from tests.fake_engine import ANSWERS, FakeEngine, install

ROOT = Path(__file__).parent.parent
TEXT = "".join(ANSWERS)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text("model: {source: somewhere}\ndevice: cpu\nrun:\n  prompts: [from the config]\n")
    return str(path)


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    real = sys.modules.get("runtime.engine")
    install()
    FakeEngine.opened.clear()
    yield
    del sys.modules["runtime.engine"]
    if real is not None:
        sys.modules["runtime.engine"] = real


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def process(*arguments: str, module: str = "tests.fake_engine", **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, encoding="utf-8", timeout=60, cwd=ROOT, env=environment, check=False, **options,
    )  # fmt: skip


# --- run


def test_one_prompt_is_its_text_alone_on_stdout(config: str) -> None:
    result = invoke("run", config, "--prompt", "x")
    assert result.exit_code == 0
    assert result.stdout == TEXT + "\n"
    last = result.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith("1 prompt, 3 prompt + 6 new tokens in ")
    assert "TTFT 250.0 ms | TPOT 10.0 ms" in last
    assert "tok/s" in last
    assert "acceptance" not in last
    assert FakeEngine.opened[0].closed


def test_statistics_show_acceptance_when_something_speculates(config: str) -> None:
    result = invoke("run", config, "--set", "speculator={method: ngram, num_speculative_tokens: 3}")
    assert "acceptance length 2.00 of 4 | per position 1.00 0.00 0.00 | 1 draft" in result.stderr


def test_several_prompts_come_in_order_under_headers(config: str) -> None:
    result = invoke("run", config, "-p", "last first", "-p", "b\nc")
    assert result.stdout == f"[1/2] last first\n{TEXT}\n\n[2/2] b c\n{TEXT}\n"


def test_without_streaming_the_answers_are_the_same(config: str) -> None:
    arguments = ["run", config, "-p", "a", "-p", "b"]
    assert invoke(*arguments, "--set", "run.stream=false").stdout == invoke(*arguments).stdout


def test_prompts_come_from_the_command_line_then_the_file_else_the_config(config: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text('["from the file", [1, 2, 3], [{"role": "user", "content": "a chat"}]]')
    both = invoke("run", config, "-p", "first", "--prompt-file", str(file)).stdout
    assert [line for line in both.split("\n") if line.startswith("[")] == [
        "[1/4] first", "[2/4] from the file", "[3/4] 3 token ids", "[4/4] a chat",
    ]  # fmt: skip
    assert json.loads(invoke("run", config, "--json").stdout)["results"][0]["prompt"] == "from the config"


def test_json_is_one_object_and_nothing_else(config: str) -> None:
    result = invoke("run", config, "-p", "a", "--json", "--set", "speculator.method=ngram")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    (entry,) = data["results"]
    assert entry["acceptance"]["mean_acceptance_length"] == 2.0
    del entry["acceptance"]
    assert entry == {
        "prompt": "a", "text": TEXT, "token_ids": [0, 1, 2, 3, 4, 5], "finish_reason": "stop", "ttft_s": 0.25,
        "tpot_s": 0.01,
    }  # fmt: skip
    assert data["totals"]["prompts"] == 1
    assert data["totals"]["prompt_tokens"] == 3
    assert data["totals"]["completion_tokens"] == 6
    assert data["totals"]["output_tokens_per_s"] == pytest.approx(6 / data["totals"]["duration_s"])
    assert data["totals"]["mean_acceptance_length"] == 2.0
    assert data["totals"]["per_position_acceptance"] == [1.0, 0.0, 0.0, 0.0]


def test_acceptance_is_absent_and_not_zero_without_speculation(config: str) -> None:
    data = json.loads(invoke("run", config, "--json").stdout)
    assert "acceptance" not in data["results"][0]
    assert not [key for key in data["totals"] if "accept" in key or "draft" in key]


def test_options_reach_the_request(config: str) -> None:
    invoke("run", config, "--max-tokens", "7", "--set", "sampling.stop=[END]", "--set", "sampling.max_tokens=9")
    ((params,),) = FakeEngine.opened[0].params
    assert (params.max_tokens, params.stop) == (7, ("END",))


def test_sampling_options_reach_the_request(config: str) -> None:
    options = ["--temperature", "0.7", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.05", "--seed", "3", "--logprobs", "2"]
    invoke("run", config, *options, "--stop", 'a "b"', "--stop", "c:", "-n", "2")
    ((params,),) = FakeEngine.opened[0].params
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 3, "logprobs": 2, "n": 2}
    assert params == SamplingParams(**given, stop=('a "b"', "c:"), max_tokens=params.max_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "abc"], "--temperature = abc: must be 0 or a number in 0.01..100"),
        (["--top-k=1.5"], "--top-k = 1.5: must be an integer in -1..2147483647"),
        (["-n", "two"], "-n = two: must be an integer in 1..64"),
        (["--bogus"], "no such option: --bogus"),
        (["--top-p"], "option '--top-p' requires an argument"),
    ],
    ids=str,
)
def test_a_mistake_in_the_command_line_is_one_line(config: str, arguments: list[str], message: str) -> None:
    result = process("run", config, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_an_option_without_a_range_of_its_own(config: str) -> None:
    result = process("bench", config, "--input-len", "x")
    assert result.stderr.startswith("error: --input-len = x: must be an integer; see ")
    assert process().returncode == 2


def test_requests_that_a_model_refuses_are_named_by_their_line(config: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('"a"\n\n{"prompt": "b"}')
    invoke("run", config, "-p", "first", "--prompt-file", str(file))
    (names,) = FakeEngine.opened[0].names
    assert names == ["prompt 1", f"prompt file {file}: line 1", f"prompt file {file}: line 3"]


def test_an_answer_that_masks_have_ended_is_an_error(config: str) -> None:
    result = invoke("run", config, "-p", "a", "-p", "masked")
    assert result.exit_code == 2
    assert "error: prompt 2: ended behind 6 tokens: every logit there is NaN or masked" in result.stderr
    assert TEXT in result.stdout


def test_requests_of_a_file_have_parameters_of_their_own(config: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "a", "top_p": 0.5}\n"b"')
    invoke("run", config, "--prompt-file", str(file), "--temperature", "1")
    (each,) = FakeEngine.opened[0].params
    assert [(params.temperature, params.top_p) for params in each] == [(1.0, 0.5), (1.0, 1.0)]
    file.write_text('"a"\n{"prompt": "b", "top_p": 2}')
    result = invoke("run", config, "--prompt-file", str(file))
    assert result.exit_code == 2
    assert "line 2: top_p = 2: must be a number above 0, at most 1" in result.stderr


def test_quiet_leaves_only_the_statistics(config: str) -> None:
    assert len(invoke("run", config, "-q").stderr.strip().split("\n")) == 1
    assert "reading weights" in invoke("run", config).stderr


# --- info, bench, version


def test_info_as_text_and_json(config: str) -> None:
    text = invoke("info", config).stdout
    assert text == (
        "device:\n  name: cpu\n  simulator: 0\ngraphs:\n  - family: decode\n    requests: 1\n  - family: verify\n"
        "    requests: 1\neos_token_ids: 2\nsliding_window: none\n"
    )
    assert json.loads(invoke("info", config, "--json").stdout)["eos_token_ids"] == [2]


def test_bench_writes_the_keys_that_tools_read(config: str, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = invoke(
        "bench", config, "-p", "a", "-p", "b", "--json", str(file), "--repeats", "2", "--num-warmups", "1",
        "--max-concurrency", "1", "--set", "speculator.method=ngram", "--compare", "--ignore-eos",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert data["completed"] == data["num_prompts"] == 4
    assert data["total_output_tokens"] == 24
    assert len(data["repetition_durations_s"]) == 2
    for key in ("mean_ttft_ms", "median_tpot_ms", "p99_itl_ms", "std_e2el_ms", "output_throughput", "config"):
        assert key in data
    assert data["prefill_tokens_per_s"] == pytest.approx(3 / 0.25)
    assert data["decode_tokens_per_s"] == pytest.approx(100.0)
    assert data["spec_decode_acceptance_length"] == 2.0
    assert data["same_tokens"] is True
    assert "spec_decode_acceptance_length" not in data["without_speculation"]
    assert "the same tokens" in result.stdout
    speculating, plain = FakeEngine.opened
    # One warm-up, two repetitions and one under the probe, of two calls each.
    assert len(speculating.params) == len(plain.params) == 8
    assert speculating.params[0].ignore_eos
    assert plain.config.speculator.k == 0


def test_bench_json_on_stdout_is_all_of_it(config: str) -> None:
    assert json.loads(invoke("bench", config, "--json", "-", "--repeats", "1").stdout)["num_prompts"] == 1


def test_bench_marks_synthetic_acceptance(config: str) -> None:
    options = ["--set", "speculator.method=ngram", "--acceptance", "synthetic:0.70", "--repeats", "1", "--json", "-"]
    result = json.loads(invoke("bench", config, *options).stdout)
    assert result["label"] == "acceptance synthetic:0.7"
    assert result["config"]["speculator"]["acceptance"] == "synthetic:0.7"


@pytest.mark.parametrize("words", [["CONFIG", "--concurrency", "1", "2"], ["--concurrency", "1", "2", "CONFIG"]], ids=" ".join)
def test_bench_takes_several_concurrencies(config: str, words: list[str]) -> None:
    result = invoke("bench", *(config if word == "CONFIG" else word for word in words), "--json", "-", "--repeats", "2")
    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["runs"]
    assert [run["max_concurrency"] for run in runs] == [1, 2]
    # The one prompt of the configuration is repeated until there are enough for the highest level.
    assert [run["completed"] for run in runs] == [4, 4]
    assert len(FakeEngine.opened) == 1
    assert all("no clock of its own" in run["steps"]["device_absent"] for run in runs)


def test_version() -> None:
    assert invoke("--version").stdout.startswith("draftgraph ")


# --- exit codes, by process: nothing of a traceback, the message on stderr


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
        (["frobnicate"], "frobnicate"),
        (["bench", "CONFIG", "--repeats", "0"], "repeats"),
        (["bench", "CONFIG", "--concurrency", "1", "99"], "--concurrency 99: above scheduler.max_num_seqs = 8"),
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


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, which it does not set in a process that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("pressed", "code"), [(True, 130), (False, None)])
def test_an_interrupt_that_comes_back_as_another_error(capsys: pytest.CaptureFixture[str], pressed: bool, code: int | None) -> None:
    """LLVM's callbacks into Python swallow a KeyboardInterrupt; Numba then fails over the code that it did not get."""
    @exits()
    def command() -> None:
        if pressed:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise RuntimeError("no compiled object yet")

    with pytest.raises(RuntimeError) as caught:
        command()
    assert getattr(caught.value, "exit_code", None) == code
    assert capsys.readouterr().err == ("interrupted\n" if pressed else "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_help_to_a_full_disk_is_a_message(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exit_code_of(app, ["--help"]) == 2
        assert capfd.readouterr().err == "error: cannot write the output: No space left on device\n"


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


# --- reports


def output(tokens: int, accepted: list[int], **changes: Any) -> RequestOutput:
    stats = AcceptanceStats(3)
    for count in accepted:
        stats.add_step(3, count)
    fields: dict[str, Any] = {"ttft_s": 0.1, "tpot_s": 0.02, **changes}
    return RequestOutput("r", "p", (1, 2), tuple(range(tokens)), "t", "length", acceptance=stats, **fields)


def test_totals_sum_counts_and_not_rates() -> None:
    # A mean of the two requests' lengths would be 2.5; drafts 1 and 3 weigh 1 to 3.
    values = totals([output(5, [3]), output(3, [0, 0, 0], ttft_s=0.3, tpot_s=None)], 2.0)
    assert values["mean_acceptance_length"] == 1 + 3 / 4
    assert values["per_position_acceptance"] == [0.25, 0.25, 0.25]
    assert values["num_drafts"] == 4
    assert values["output_tokens_per_s"] == 4.0
    assert values["mean_ttft_s"] == pytest.approx(0.2)
    assert values["mean_tpot_s"] == pytest.approx(0.02)


def test_the_stats_line_without_a_token() -> None:
    line = stats_line(totals([RequestOutput("r", "p", (), (), "", "cancelled")], 0.0))
    assert line == "1 prompt, 0 prompt + 0 new tokens in 0.00 s | TTFT - | TPOT -"


def test_a_record_times_an_interrupted_request_itself() -> None:
    record = RunRecord(["a", "b"], 10.0)
    record.add(StreamEvent(1, "x", (1,)), 10.5)
    record.add(StreamEvent(1, "y", (2, 3)), 11.5)
    assert not record.finished
    first, second = record.outputs()
    assert (first.text, first.ttft_s, first.tpot_s, first.finish_reason) == ("", None, None, "cancelled")
    assert (second.text, second.token_ids, second.ttft_s, second.tpot_s) == ("xy", (1, 2, 3), 0.5, 0.5)
    assert record.totals()["duration_s"] == 1.5


def test_info_renders_empty_and_nested_values() -> None:
    info = {"a": [], "b": {}, "c": [{}, {"d": {"e": 1}}, "f"], "g": (1, 2)}
    assert render_info(info) == "a: none\nb:\nc:\n  -\n  - d:\n      e: 1\n  - f\ng: 1, 2"
