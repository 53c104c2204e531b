"""A profile on a CPU from the engine to the files, and how a pass in a child process ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphs.key import Family, GraphKey
from runtime.cli import app
from runtime.config import RunConfig, load_config
from runtime.errors import ConfigError, DeviceError
from runtime.intake import Expects
from runtime.landing import PendingRead
from runtime.phase_clock import Phase
from runtime.profile import session
from runtime.profile.analysis import Analysis
from runtime.profile.collectors import OPENING, Collector, ReplayLog
from runtime.profile.cupti_collector import missing_cupti
from runtime.profile.graph_facts import bytes_read
from runtime.profile.profile import Profile
from runtime.profile.table import render_profile
from runtime.profile.trace import Kind, Mode
from runtime.profile.workload import Workload
from tests.canned_traces import graph_trace
from tests.cli_process import process
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_command import write_tiny_config
from tests.tiny_engine import LOOPING, open_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile") / "model"
    write_tiny_checkpoint(folder, LOOPING)
    return folder


def profiled(model: Path, trace: Mode, num_prompts: int = 2, steps: int = 4, **overrides: Any) -> Profile:
    settings = {"model__source": str(model), "device": "cpu", **overrides}
    config = load_config({}, **settings)

    @contextmanager
    def opened(expects: Expects) -> Iterator[Any]:
        with open_tiny(model, expects=expects, **overrides) as engine:
            yield engine

    return session.profile(config, [[5, 6, 7]] * num_prompts, trace, opened, steps=steps)


# --- on a CPU


def test_a_cpu_shows_phases_and_the_order_of_work_and_says_that_nothing_overlaps(model: Path) -> None:
    profile = profiled(model, Mode.NODE)
    record = profile.as_dict()
    assert "not measured" in record["overlap"]
    assert {"products", "attention", "step"} <= {share["family"] for share in record["shares"]["step"]}
    assert sum(share["percent"] for share in record["shares"]["step"]) == pytest.approx(100.0)
    assert record["host_phases_ms"]["collect"] > 0
    assert record["replays_per_step"] == {"verify[R=2,T=8,q=4]": 1.0, "propose[R=2]": 1.0}
    assert 2 <= record["tokens_per_step"] <= 8
    assert "busy_percent" not in json.dumps(record)
    text = render_profile(record)
    assert "overlap: not measured" in text
    assert "what a step does" in text


def test_work_of_a_cpu_lies_inside_the_phases_in_which_the_host_waits(model: Path) -> None:
    """The lazy schedule: nothing runs before somebody waits for it. That is what the picture has to show."""
    trace = profiled(model, Mode.GRAPH).truth.trace
    waits = [(span.start, span.end) for span in trace.phases if span.phase is Phase.COLLECT]
    replays = [activity for activity in trace.activities if activity.kind is Kind.GRAPH and "verify" in activity.name]
    assert replays
    inside = [any(start <= replay.start and replay.end <= end for start, end in waits) for replay in replays]
    assert sum(inside) >= len(inside) - 1  # what is left at the end is run by the drain, outside a step


@pytest.mark.parametrize("mode", [Mode.GRAPH, Mode.NODE])
def test_every_launch_of_a_replay_is_shown_once(model: Path, mode: Mode) -> None:
    trace = profiled(model, mode, num_prompts=1).truth.trace
    first, last = trace.window
    for number in range(first + 1, last + 1):
        rows = [activity for activity in trace.activities if activity.launch == number]
        kinds = {activity.kind for activity in rows}
        assert kinds == {Kind.GRAPH} if mode is Mode.GRAPH else Kind.GRAPH not in kinds
        assert len(rows) == 1 if mode is Mode.GRAPH else len(rows) > 0


@pytest.mark.parametrize(
    ("overrides", "steps", "reason"),
    [
        ({}, 40, r"--steps = 40: with 4 tokens a step a request may grow by 200 tokens, and 61 are left"),
        ({"graphs__mode": "eager"}, 4, "graphs.mode = eager: nothing is replayed"),
    ],
)
def test_what_cannot_be_profiled_is_refused(model: Path, overrides: dict[str, Any], steps: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        profiled(model, Mode.GRAPH, steps=steps, **overrides)


def test_the_command_writes_its_files_and_ends_well(model: Path, tmp_path: Path) -> None:
    config = write_tiny_config(tmp_path, model)
    result = CliRunner().invoke(app, ["profile", config, "--steps", "3", "--out", str(tmp_path / "out"), "-q"])
    assert result.exit_code == 0, result.output
    assert "overlap: not measured" in result.stdout
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"profile.json", "trace.json", "profile.html"} <= names
    assert ("timeline.png" in names) != ("matplotlib is not installed" in result.stderr)


def test_a_disk_that_fills_up_meanwhile_takes_no_figures_with_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise ConfigError("--out: cannot be written: No space left on device")

    monkeypatch.setattr(session, "write_files", full)
    config = write_tiny_config(tmp_path, model)
    result = CliRunner().invoke(app, ["profile", config, "--steps", "3", "--out", str(tmp_path / "out"), "-q"])
    assert result.exit_code == 2
    assert "overlap: not measured" in result.stdout
    assert "No space left on device" in result.stderr


def test_the_simulator_is_profiled_where_the_configuration_asks_for_it(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {{source: {model}}}\nrun: {{prompts: [hello]}}\n")
    limits = (("max_num_seqs", 1), ("max_model_len", 64), ("max_num_batched_tokens", 32))
    small = [f"scheduler.{name}={limit}" for name, limit in limits]
    sets = [part for text in ("device=simulator", "speculator.method=none", *small) for part in ("--set", text)]
    result = process("profile", str(config), *sets, "--steps", "1", "--out", str(tmp_path / "out"), "-q", module="runtime.cli")
    assert result.returncode == 0, result.stderr
    assert "simulator" in result.stdout
    assert (tmp_path / "out" / "profile.html").exists()


def test_an_interrupt_in_the_middle_of_a_step_stays_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    takes, take = count(), PendingRead.take

    def interrupted(read: PendingRead) -> Any:
        if next(takes) == 5:
            raise KeyboardInterrupt
        return take(read)

    monkeypatch.setattr(PendingRead, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profiled(model, Mode.NODE)


def test_a_refused_trace_is_exit_code_1_and_leaves_no_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {{source: {model}}}\nrun: {{prompts: [hello]}}\n")

    def refuse(*arguments: Any, **options: Any) -> Profile:
        return Profile({Mode.GRAPH: Analysis(graph_trace(dropped=2))})

    monkeypatch.setattr(session, "profile", refuse)
    result = CliRunner().invoke(app, ["profile", str(config), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "refused: graph trace: 2 records were dropped" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_replay_has_to_read_every_weight_once_and_the_cache_of_its_requests(model: Path) -> None:
    with open_tiny(model) as engine:
        library = engine.runner.library  # type: ignore[attr-defined]
        found = bytes_read(library, 1000)
        streamed = engine.info()["model"]["streamed_bytes"]
    verify = found["verify[R=2,T=8,q=4]"]
    assert verify["attention"] == 1000
    # Norms are read by other families.
    assert 0.95 * streamed < verify["products"] <= streamed
    assert "attention" not in found["mixed[R=4,T=32]"]


def test_a_window_that_nobody_chose_is_as_long_as_fits(model: Path, tmp_path: Path) -> None:
    """16 steps of 4 tokens have no room in 64 positions; 4 have, beside the warm-up and what is in flight."""
    config = write_tiny_config(tmp_path, model)
    sets = [part for text in ("speculator.method=ngram", "speculator.num_speculative_tokens=3") for part in ("--set", text)]
    result = CliRunner().invoke(app, ["profile", config, *sets, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "--steps = 4: no more fit beside the prompt (scheduler.max_model_len); 16 are usual" in result.stderr


def test_more_requests_than_slots_are_a_mistake(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {{source: {model}}}\nscheduler: {{max_num_seqs: 2}}\nrun: {{prompts: [hello]}}\n")
    result = CliRunner().invoke(app, ["profile", str(config), "--concurrency", "3"])
    assert result.exit_code == 2
    assert "--concurrency 3: above scheduler.max_num_seqs = 2" in result.stderr


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    config, taken = tmp_path / "run.yaml", tmp_path / "taken"
    config.write_text("model: {source: nowhere}\nrun: {prompts: [hello]}\n")
    taken.write_text("a file")
    for command in (["profile", "--out"], ["compare", "--arms", "runner.async=true", "runner.async=false", "--record"]):
        result = CliRunner().invoke(app, [command[0], str(config), *command[1:], str(taken / "deeper")])
        assert result.exit_code == 2
        assert f"{command[-1]} {taken / 'deeper'}: cannot be written" in result.stderr
    result = CliRunner().invoke(app, ["profile", str(config), "--out", str(tmp_path / "new" / "deeper")])
    assert "nowhere" in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_node_pass_looks_at_the_middle_of_the_others() -> None:
    whole, part = (session._workload(mode, [[1]], 200) for mode in (Mode.GRAPH, Mode.NODE))
    assert (whole.warmup_steps, whole.steps, part.steps) == (10, 200, 30)
    assert part.warmup_steps + part.steps / 2 == whole.warmup_steps + whole.steps / 2
    assert session._workload(Mode.NODE, [[1]], 20) == session._workload(Mode.GRAPH, [[1]], 20)


# --- the process of a pass


def child_config(model: Path) -> RunConfig:
    sizes = {"max_num_seqs": 2, "max_model_len": 64, "max_num_batched_tokens": 32, "block_size": 4}
    return load_config({"model": {"source": str(model)}, "device": "cpu", "scheduler": sizes, "run": {"chat": False}})


def test_a_pass_in_a_child_comes_back_as_a_trace(model: Path) -> None:
    trace = session.pass_in_child(child_config(model), Mode.HOST, Workload([[5, 6]], 1, 2), quiet=True)
    assert trace.mode is Mode.HOST
    assert Analysis(trace).trace.steps == 2


def test_an_error_of_the_child_is_an_error_here(model: Path) -> None:
    with pytest.raises(ConfigError, match="--steps = 60"):
        session.pass_in_child(child_config(model), Mode.HOST, Workload([[5, 6]], 1, 60), quiet=True)


def test_a_child_that_dies_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DeviceError, match="graph pass: its process ended with code 1 and no trace"):
        session.pass_in_child(child_config(model), Mode.GRAPH, Workload([[5, 6]], 1, 2), quiet=True)


def test_a_missing_cupti_is_named_with_its_remedy(model: Path) -> None:
    try:
        import cupti  # noqa: F401
    except ImportError:
        with pytest.raises(DeviceError, match=r"pip install draftgraph\[profile\]"):
            session.pass_in_child(child_config(model), Mode.GRAPH, Workload([[5, 6]], 1, 2), quiet=True)
    else:
        pytest.skip("CUPTI is installed here")


def test_a_missing_cupti_is_told_before_the_first_pass(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "resolve_kind", lambda device: ("cuda", "asked for"))
    monkeypatch.setattr(session, "pass_in_child", lambda *_, **__: pytest.fail("a pass was run"))
    monkeypatch.setattr(sys, "executable", "/bin/false")  # a Python that cannot load it
    with pytest.raises(DeviceError, match=r"CUPTI is not there \(exit code 1\); pip install draftgraph\[profile\]"):
        profiled(model, Mode.GRAPH)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert missing_cupti() is None


def test_a_step_begins_with_a_graph_of_the_target() -> None:
    log = ReplayLog(Collector())
    target, others = GraphKey.uniform(1, 3), [family for family in Family if family not in OPENING]
    for _ in range(2):
        for key in (target, *(replace(target, family=family) for family in others)):
            log.before(key)
            log.after(key)
    assert [replay.opens for replay in log.replays()] == ([True] + [False] * len(others)) * 2
    assert log.uniform_steps() == 2
