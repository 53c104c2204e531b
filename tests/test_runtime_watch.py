"""run --watch: what the view shows, and that the text comes all the same."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from runtime.cli import app
from runtime.metrics import AcceptanceStats
from runtime.report import StreamEvent
from runtime.sampling import SamplingParams
from runtime.text_printer import TextPrinter
from runtime.watch import Snapshot, Watch, render, snapshot
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch") / "model"
    write_tiny_checkpoint(folder, LOOPING)
    return folder


def shown(**changes: object) -> str:
    acceptance = AcceptanceStats(2)
    for accepted in (0, 1, 2, 2):
        acceptance.add_step(2, accepted)
    values = {
        "tokens": 30, "tokens_per_s": 12.34, "acceptance": acceptance, "running": 2, "waiting": 1, "steps_in_flight": 1,
        "preemptions": 0, "kv_used": 3, "kv_blocks": 12, "replays": {"verify": 9, "propose": 10}, "padded_rows": 4,
        "fall_outs": {}, "stale_reads_refused": 0, "waits": {"event": 9, "compute stream": 0, "device": 0},
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=100, color_system=None, record=True)
    console.print(render(Snapshot(**(values | changes))))  # type: ignore[arg-type]
    return console.export_text()


def test_a_row_a_value() -> None:
    text = shown()
    for part in (
        "30, 12.3 tok/s", "length 2.25, by position 0.75 0.50", "2 running, 1 waiting, 1 steps in flight", "3 of 12 blocks, 25 %",
        "verify 9, propose 10; 4 padded rows", "9 for an event; none",
    ):  # fmt: skip
        assert part in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("fall-outs", "stale reads"))] == ["none", "none"]


def test_what_should_not_happen_is_named() -> None:
    text = shown(fall_outs={"graphs.mode = eager": 3}, stale_reads_refused=2, waits={"event": 9, "compute stream": 4, "device": 0})
    assert "graphs.mode = eager 3" in text
    assert "refused 2" in text
    assert "9 for an event; compute stream 4" in text


def test_without_speculation_there_is_no_acceptance() -> None:
    assert "acceptance" not in shown(acceptance=None)


def test_a_snapshot_of_a_running_engine(model: Path) -> None:
    with open_tiny(model) as engine:
        for prompt in ([5, 6, 7], [8, 9]):
            engine.submit(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
        for _ in range(4):
            engine.step()
        seen = snapshot(engine, 5, None)
        assert (seen.running, seen.waiting, seen.steps_in_flight) == (2, 0, 1)
        assert 0 < seen.kv_used < seen.kv_blocks
        assert seen.replays["verify"] == 3
        assert seen.replays["mixed"] == 1
        assert seen.waits["event"] == 3
        assert seen.waits["compute stream"] == seen.stale_reads_refused == 0
        assert seen.acceptance is not None
    with open_tiny(model, k=0) as engine:
        assert snapshot(engine, 0, None).acceptance is None


def test_the_rate_is_that_of_the_last_two_seconds_and_text_is_held_back(model: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(file=err, width=100, force_terminal=True, color_system=None)
    ticks = count(0.0, 0.5)
    with open_tiny(model) as engine, Watch(engine, TextPrinter(out, ["a"], live=True), console, lambda: next(ticks)) as view:
        for _ in range(8):
            view.add(StreamEvent(0, "word ", (1, 2)))
        assert out.getvalue() == ""
    assert out.getvalue().startswith("word word ")
    assert "16, 4.0 tok/s" in err.getvalue()


def test_the_command(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    sizes = "{max_num_seqs: 2, max_model_len: 64, max_num_batched_tokens: 32, block_size: 4}"
    config.write_text(f"model: {{source: {model}}}\ndevice: cpu\nscheduler: {sizes}\nrun: {{chat: false, prompts: [hello]}}\n")
    options = ["run", str(config), "--max-tokens", "6", "-q"]
    plain, watched = (CliRunner().invoke(app, [*options, *more]) for more in ([], ["--watch"]))
    assert (watched.exit_code, watched.stdout) == (0, plain.stdout)
    assert "stale reads" in watched.stderr
    assert "stale reads" not in plain.stderr
