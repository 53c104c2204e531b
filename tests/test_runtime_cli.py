"""The command line: what goes to stdout and to stderr."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from runtime.cli import app
from runtime.console import still_bar
from runtime.errors import DeviceError
from runtime.sampling import SamplingParams
from tests.cli_process import TEXT, process, write_config
from tests.fake_engine import FakeEngine, install

config = pytest.fixture(write_config)


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
        (["--bogus"], "no such option"),
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


def test_an_answer_of_several_is_named(config: str) -> None:
    result = invoke("run", config, "-p", "masked", "-n", "2", "--temperature", "1")
    assert "error: prompt 1, sample 0: ended behind 6 tokens" in result.stderr
    assert "\n2 sequences of 1 prompt, " in result.stderr


def test_timed_answers_that_masks_have_ended_are_refused(config: str) -> None:
    result = invoke("bench", config, "-p", "a", "-p", "masked", "--repeats", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: 1 of 2 timed requests ended where every logit is NaN or masked, the first behind 6 tokens" in result.stderr


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


def test_what_was_timed_outlives_what_it_was_to_be_compared_with(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FakeEngine.from_config

    def only_speculating(source: Any, **options: Any) -> FakeEngine:
        if not source.speculator.k:
            raise DeviceError("out of memory")
        return opened(source, **options)

    monkeypatch.setattr(FakeEngine, "from_config", only_speculating)
    result = invoke("bench", config, "-p", "a", "--repeats", "1", "--set", "speculator.method=ngram", "--compare")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "output: median" in result.stderr
    assert result.stderr.endswith("error: out of memory\n")


def test_bench_says_how_far_it_is_unless_it_is_to_be_quiet(config: str) -> None:
    """Each level has a bar, of warm-up, repetitions and the one for what a step costs."""
    arguments = ("bench", config, "--concurrency", "1", "--concurrency", "2", "--repeats", "2", "--num-warmups", "1")
    result = invoke(*arguments)
    said = [line.partition(" ")[2] for line in result.stderr.splitlines() if "repetitions" in line]
    assert [line.partition(", ")[0] for line in said] == [
        "bench: 1 request at a time: 4/4 repetitions",
        "bench: 2 requests at a time: 4/4 repetitions",
    ]
    assert "bench" not in invoke(*arguments, "-q").stderr


def test_a_bar_for_what_is_timed_is_drawn_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = threading.active_count()
    with still_bar("bench", "repetitions") as advance:
        advance(1, 3)
        assert threading.active_count() == before


def test_a_wide_spread_is_told(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.bench.busy_elsewhere", lambda: 5)
    monkeypatch.setattr("runtime.bench.usable_cores", lambda: 2)
    monkeypatch.setattr("runtime.bench.WIDE_SPREAD", -1.0)
    said = invoke("bench", config, "--repeats", "2").stdout
    assert "%: other work on this machine? behind the last repetition it kept 2 of 2 cores busy\n" in said
    monkeypatch.setattr("runtime.bench.WIDE_SPREAD", 1e9)
    assert "other work" not in invoke("bench", config, "--repeats", "2").stdout


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
