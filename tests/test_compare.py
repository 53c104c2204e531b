"""compare: verdicts on planted measurements, and the whole of it over a tiny engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from runtime.cli import app
from runtime.compare import Pairs, Plan, compare, judged
from runtime.compare_arms import Arm, Sample, measure
from runtime.compare_report import render_compare
from runtime.compare_statistics import abba
from runtime.config import RunConfig, load_config
from runtime.cuda_probe import cuda_unavailable
from runtime.errors import ConfigError
from runtime.gates.verdict import Verdict
from runtime.records import read_records
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_command import write_tiny_config
from tests.tiny_engine import LOOPING, open_tiny

ASYNC, SYNC = {"counters": {"path collected_late": 60}}, {"counters": {"path collected_at_once": 60}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "model"
    write_tiny_checkpoint(folder, LOOPING)
    return folder


def planted(slower: float, second_path: Any = SYNC, noise: float = 0.01, seed: int = 0, outputs: str = "same") -> Pairs:
    """Pairs whose second arm takes `slower` times as long, with noise of that standard deviation."""
    rng = np.random.default_rng(seed)
    pairs: Pairs = ([], [])
    for order in abba(6):
        for arm in order:
            time = 5.0 * (slower if arm else 1.0) * float(np.exp(rng.normal(0, noise)))
            pairs[arm].append(Sample(time, 1000 / time, outputs if arm else "same", second_path if arm else ASYNC))
    return pairs


def equal(**options: Any) -> Pairs:
    return planted(1.0, ASYNC, seed=1, **options)


@pytest.mark.parametrize("metric", ["tpot_ms", "tokens_per_s"])
def test_ten_percent_are_told_and_one_is_under_the_floor(metric: str) -> None:
    faster = judged(metric, equal(), planted(1.1))
    assert faster.verdict is Verdict.SATISFIED
    assert faster.effect is not None
    assert faster.effect.ratio == pytest.approx(1.1, abs=0.02)
    slower = judged(metric, equal(), planted(1 / 1.1))
    assert slower.verdict is Verdict.OPEN_GAP
    small = judged(metric, equal(), planted(1.01))
    assert (small.verdict, small.effect) == (Verdict.UNDER_FLOOR, None)
    assert "ratio" not in small.as_dict()
    assert "medians" not in small.as_dict()


def test_the_floor_in_words_is_a_difference_in_percent_and_no_logarithm() -> None:
    apart = equal()
    apart[0][0] = replace(apart[0][0], tpot_ms=2.0 * apart[1][0].tpot_ms)
    found = judged("tpot_ms", apart, planted(1.1))
    assert found.floor == pytest.approx(math.log(2))
    assert "equal arms differ by up to 100.00 %" in found.detail


def test_arms_on_one_path_are_tautological_however_far_apart_their_times() -> None:
    found = judged("tpot_ms", equal(), planted(1.5, ASYNC))
    assert (found.verdict, found.effect) == (Verdict.TAUTOLOGICAL, None)


def test_arms_with_other_outputs_did_other_work() -> None:
    found = judged("tpot_ms", equal(), planted(1.5, outputs="other"))
    assert (found.verdict, found.effect) == (Verdict.NOT_MEASURED, None)
    assert "2 different outputs" in found.detail
    assert judged("tpot_ms", equal(), planted(1.5, outputs="other"), same_outputs=False).verdict is Verdict.SATISFIED


def test_paths_that_differ_between_equal_arms_prove_nothing() -> None:
    found = judged("tpot_ms", planted(1.0, SYNC), planted(1.5))
    assert (found.verdict, found.effect) == (Verdict.NOT_MEASURED, None)


def adapting(pairs: Pairs, names: str, arms: tuple[int, ...] = (0, 1)) -> Pairs:
    """The same times; each run of these arms took as many steps of these names as it liked."""
    for arm in arms:
        pairs[arm][:] = [
            replace(sample, path={"counters": {f"graph {name}": 30 + number + arm for name in names.split()}})
            for number, sample in enumerate(pairs[arm])
        ]
    return pairs


def test_an_arm_that_adapts_is_told_from_one_that_never_does_the_same() -> None:
    """Equal arms differ by counts, but all of them verify, and plain decoding never does: there is a path to tell."""
    floor, plain = adapting(equal(), "verify propose"), {"counters": {"graph decode": 60}}
    found = judged("tpot_ms", floor, adapting(planted(1.5, plain), "verify propose", arms=(0,)))
    assert (found.verdict, found.floor is not None) == (Verdict.SATISFIED, True)
    swapped = judged("tpot_ms", adapting(equal(), "decode"), adapting(planted(1 / 1.5), "decode verify", arms=(1,)))
    assert swapped.verdict is Verdict.OPEN_GAP


def test_arms_that_both_adapt_are_told_by_what_one_always_and_the_other_never_does() -> None:
    floor = adapting(equal(), "verify propose")
    both = adapting(adapting(planted(1.5), "verify propose", arms=(0,)), "verify propose wide", arms=(1,))
    assert judged("tpot_ms", floor, both).verdict is Verdict.SATISFIED
    both[1][2] = replace(both[1][2], path={"counters": {"graph verify": 3, "graph propose": 3}})
    assert judged("tpot_ms", floor, both).verdict is Verdict.NOT_MEASURED


def test_without_equal_arms_there_is_no_floor_and_no_pass() -> None:
    found = judged("tpot_ms", None, planted(1.5))
    assert found.verdict is Verdict.RECORDED
    assert found.effect is not None


def test_verdicts_are_ordered_and_only_one_is_a_pass() -> None:
    order = list(Verdict)
    assert (order[0], order[-1]) == (Verdict.SATISFIED, Verdict.TAUTOLOGICAL)
    assert order.index(Verdict.UNDER_FLOOR) < order.index(Verdict.NOT_MEASURED)


# --- over an engine


def plan(**changes: Any) -> Plan:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    return Plan(**({"levels": [1, 2], "prompts": [[5, 6, 7]], "params": params, "num_pairs": 4, "num_warmups": 1} | changes))


def compared(model: Path, arms: list[str], **changes: Any) -> dict[str, Any]:
    base = load_config({"model": {"source": str(model)}, "device": "cpu"})
    opened: list[str] = []

    @contextmanager
    def open_arm(arm: Arm) -> Iterator[Any]:
        opened.append(arm.name)
        settings = dict(text.split("=") for text in arm.name.split())
        overrides: dict[str, Any] = {key.replace(".", "__"): json.loads(value) for key, value in settings.items()}
        k = overrides.pop("k", 3)
        with open_tiny(model, k=k, **overrides) as engine:
            yield engine

    parsed = [Arm(name, base) for name in arms]
    ticks: list[tuple[int, int]] = []
    report = compare(parsed, plan(**changes), open_arm, lambda done, total: ticks.append((done, total)))
    assert opened == [arms[0], arms[0], *arms[1:]]
    assert ticks[-1][0] == ticks[-1][1] == len(ticks) - 1
    return report | {"results": [result.as_dict() for result in report["results"]]}


def test_the_two_runners_take_different_paths_and_yield_the_same_tokens(model: Path) -> None:
    report = compared(model, ["runner.async=true", "runner.async=false"])
    verdicts = {result["verdict"] for result in report["results"]}
    assert verdicts <= {Verdict.SATISFIED.value, Verdict.UNDER_FLOOR.value, Verdict.OPEN_GAP.value}
    assert [(result["concurrency"], result["metric"]) for result in report["results"]] == [
        (1, "tpot_ms"), (1, "tokens_per_s"), (2, "tpot_ms"), (2, "tokens_per_s"),
    ]  # fmt: skip
    assert len(report["samples"]) == 4
    assert all(len(sample["first"]["tpot_ms"]) == 4 for sample in report["samples"])
    text = render_compare(report)
    assert "runner.async=true  against  runner.async=false" in text
    told = [result for result in report["results"] if result["verdict"] in ("SATISFIED", "OPEN GAP")]
    assert text.count("times as good (95 %: ") == len(told)
    json.dumps(report)


def test_a_speculator_is_an_arm_like_any_other(model: Path) -> None:
    report = compared(model, ["k=3", "k=0"], levels=[1])
    assert {result["verdict"] for result in report["results"]} <= {"SATISFIED", "UNDER THE FLOOR", "OPEN GAP"}


def test_an_option_that_changes_nothing_is_tautological(model: Path) -> None:
    """Poison fills memory that nobody should read: another configuration, the same path."""
    report = compared(model, ["mirror.poison=false", "mirror.poison=true"], levels=[1])
    assert {result["verdict"] for result in report["results"]} == {"TAUTOLOGICAL"}
    assert "times as good" not in render_compare(report)


def test_a_path_is_counted_and_not_configured(model: Path) -> None:
    with open_tiny(model) as engine:
        first = measure(engine, [[5, 6, 7]], SamplingParams(max_tokens=6, ignore_eos=True), 1)
        second = measure(engine, [[5, 6, 7]], SamplingParams(max_tokens=6, ignore_eos=True), 1)
    assert first.path == second.path
    assert first.outputs == second.outputs
    assert any("collected_late" in name for name in first.path["counters"])
    assert any(name.startswith("verify") for name in first.path["graphs"])


def test_a_run_answers_every_prompt_and_no_more_than_so_many_at_a_time(model: Path) -> None:
    prompts, params = [[5, 6, 7], [8, 9], [5, 5, 5], [6], [7, 8]], SamplingParams(max_tokens=6, ignore_eos=True)
    found = plan(prompts=prompts)
    with open_tiny(model, k=0) as engine:
        assert [len(found.prompts_at(level, engine)) for level in (1, 2, 7)] == [5, 5, 7]
        samples = {level: measure(engine, prompts, params, level) for level in (1, 2, 3)}
    assert len({sample.outputs for sample in samples.values()}) == 1
    for level, sample in samples.items():
        decoded = {key for key in sample.path["graphs"] if key.startswith("decode")}
        rows = {int(key.partition("R=")[2].partition(",")[0]) for key in decoded}
        assert rows == {1: {1}, 2: {1, 2}, 3: {2, 4}}[level]  # graphs are built for powers of two


def test_answers_that_the_models_length_cuts_short_are_refused(model: Path) -> None:
    """Prompts of texts have a length only once the model is open; 60 tokens and 4 new ones just fit."""
    with open_tiny(model, k=0) as engine:
        fits, prompts = SamplingParams(max_tokens=4, ignore_eos=True), [[5, 6], [7] * 60]
        measure(engine, prompts, fits, 1)
        with pytest.raises(ConfigError, match=r"prompt 2: its 60 tokens and 5 new ones are above scheduler.max_model_len = 64"):
            measure(engine, prompts, SamplingParams(max_tokens=5, ignore_eos=True), 1)
        measure(engine, prompts, SamplingParams(max_tokens=5), 1)  # may end wherever it likes


def test_a_run_that_is_interrupted_leaves_no_request_behind(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_tiny(model) as engine:
        steps = iter(range(3))
        true_step = engine.step
        monkeypatch.setattr(engine, "step", lambda: (next(steps), true_step()))
        with pytest.raises(StopIteration):
            measure(engine, [[5, 6, 7], [8]], SamplingParams(max_tokens=9, ignore_eos=True), 2)
        monkeypatch.undo()
        engine.drain()
        assert not engine.has_unfinished


# --- the command line


@pytest.fixture
def config(model: Path, tmp_path: Path) -> str:
    return write_tiny_config(tmp_path, model)


def test_the_command_takes_arms_and_concurrencies_in_a_row(config: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    options = ["--concurrency", "1", "2", "--pairs", "4", "--num-warmups", "0", "--output-len", "4", "--json", str(file), "-q"]
    options += ["--record", str(tmp_path / "records")]
    result = CliRunner().invoke(app, ["compare", config, "--arms", "runner.async=true", "runner.async=false", *options])
    assert result.exit_code == 0, result.output
    assert "4 pairs in the order AB BA" in result.stdout
    report = json.loads(file.read_text())
    assert [entry["concurrency"] for entry in report["samples"]] == [1, 2, 1, 2]
    assert report["facts"]["model"]["dtype"] == "float32"
    [(_, record)], _ = read_records(tmp_path / "records")
    assert record.title == "runner.async=true against runner.async=false"
    asked = "--arms runner.async=true runner.async=false --concurrency 1 2 --output-len 4 --pairs 4 --num-warmups 0"
    assert record.command.endswith(asked)
    assert len(record.axes) == 4
    assert not record.stale


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--arms", "runner.async=true"], "give at least two"),
        ([], "give at least two"),
        (["--arms", "a=1", "a=1"], "stands there twice"),
        (["--arms", "runner.async=true", "runner.async=false", "8"], "stands behind --concurrency"),
        (["--arms", "runner.async=true", "runner.async=false", "--pairs", "5"], "must be even"),
        (["--arms", "runner.async=true", "runner.async=false", "--concurrency", "4"], "above scheduler.max_num_seqs = 2"),
        (["--arms", "runner.async=true", "runner.async=false", "--input-len", "9000"], "--input-len 9000: with a new token above"),
        (["--arms", "runner.async=true", "runner.asink=false"], "--arms runner.asink=false: configuration: 1 mistake"),
        (["--arms", "runner.async=true", "runner..async=false"], "--arms runner..async=false: must be KEY=VALUE"),
        (["--arms", "runner.async=true", "runner.async=["], "--arms runner.async=[: YAML error"),
        (["--arms", "runner.async=true", "' "], "CONFIG"),
        (
            ["--arms", "runner.async=true", "runner.async=false", "--set", "sampling={n: 3, temperature: 1}"],
            "sampling.n = 3: a prompt is answered once",
        ),
    ],
)
def test_mistakes_get_a_message(config: str, arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["compare", config, *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "--set" not in result.stderr or "add --set" in result.stderr


def test_answers_whose_length_nobody_chose_are_as_long_as_fits(model: Path, tmp_path: Path) -> None:
    arms = ["--arms", "runner.async=true", "runner.async=false"]
    config, options = write_tiny_config(tmp_path, model), ["--pairs", "4", "--num-warmups", "0", "--json", "-"]
    result = CliRunner().invoke(app, ["compare", config, *arms, *options])
    assert result.exit_code == 0, result.output
    assert "--output-len = 59: no more fit beside the prompt (scheduler.max_model_len)" in result.stderr
    assert json.loads(result.stdout)["pairs"] == 4


@pytest.mark.skipif(cuda_unavailable() is None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_before_anything_is_compared(model: Path, tmp_path: Path) -> None:
    arms = ["--arms", "runner.async=true", "runner.async=false", "--set", "device=cuda"]
    result = CliRunner().invoke(app, ["compare", write_tiny_config(tmp_path, model), *arms])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: device = cuda: ")


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_a_prompt_of_the_configuration_that_leaves_no_room_is_named(config: str, command: str) -> None:
    arms = ["--arms", "runner.async=true", "runner.async=false"] if command == "compare" else []
    result = CliRunner().invoke(app, [command, config, *arms, "--num-warmups", "0", "--output-len", "63", "-q"])
    assert result.exit_code == 2, result.output
    assert "prompt 1: its 5 tokens and 63 new ones are above scheduler.max_model_len = 64" in result.stderr
    assert "where the answer ends after 59; lower --output-len" in result.stderr


def test_an_arm_may_set_several_keys() -> None:
    base = load_config({"model": {"source": "x"}})
    arm = Arm.parse("runner.async=false scheduler.max_num_seqs=4", base)
    assert isinstance(arm.config, RunConfig)
    assert (arm.config.runner.async_, arm.config.scheduler.max_num_seqs) == (False, 4)
    with pytest.raises(ConfigError, match="at least one key"):
        Arm.parse(" ", base)
