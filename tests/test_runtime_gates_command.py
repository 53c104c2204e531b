"""`draftgraph gates`, and the whole engine thread by thread."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernels.lang import SIMULATED
from runtime import cli_gates
from runtime.cli import app
from runtime.errors import DeviceError
from runtime.gates import g1, g2, gates
from runtime.gates.case import Case
from runtime.gates.emit_budget import emission_cases
from runtime.gates.gates import run_gate
from runtime.gates.matrix import covering
from runtime.gates.measured import not_measured
from runtime.gates.play import WORTH_A_PROCESS, default_workers
from runtime.gates.table import render_reports
from runtime.gates.verdict import GateReport, Verdict
from tests.gate_reports import EXECUTOR, SPECULATIVE, report_of


def test_the_command_is_green_for_a_case() -> None:
    result = CliRunner().invoke(app, ["gates", "--case", str(SPECULATIVE), "-q"])
    assert result.exit_code == 0, result.output
    assert "G1  routing and token identity: SATISFIED" in result.stdout
    assert "G2  ids that are verified are ids that were drafted: SATISFIED" in result.stdout


def test_the_command_in_json() -> None:
    result = CliRunner().invoke(app, ["gates", "g2", "--case", str(SPECULATIVE), "--json", "-q"])
    values = json.loads(result.stdout)
    assert values["satisfied"] is True
    assert [gate["gate"] for gate in values["gates"]] == ["G2"]
    assert {axis["name"] for axis in values["gates"][0]["axes"]} == {"runs to its end", *g2.AXES}


def test_the_command_ends_with_1_when_a_gate_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g1, "AXES", (*g1.AXES, "never checked"))
    monkeypatch.setattr(gates, "default_cases", lambda gate: [SPECULATIVE])
    monkeypatch.setattr(gates, "emission_cases", lambda: emission_cases()[:1])
    result = CliRunner().invoke(app, ["gates", "G1", "-q"])
    assert result.exit_code == 1
    assert "NOT MEASURED" in result.stdout


def test_the_command_runs_a_gate_once_and_says_why_nothing_was_measured() -> None:
    result = CliRunner().invoke(app, ["gates", "G2", "g2", "--case", "speculator=none k=0"])
    assert result.exit_code == 1
    assert result.stdout.count("NOT MEASURED") == 2  # the gate, and its one axis
    assert "no case has drafts (k = 0)" in result.stdout
    assert "None" not in result.output


def test_what_a_gate_measured_outlives_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(name: str, *_: object) -> GateReport:
        if name == "G4":
            raise DeviceError("node pass: its process ended with code 9")
        return not_measured(name, "measured before", ["an axis"], "took minutes")

    monkeypatch.setattr(cli_gates, "_measure", measured)
    result = CliRunner().invoke(app, ["gates", "G3", "G4", "-q"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "G3  measured before" in result.stderr
    assert result.stderr.endswith("error: node pass: its process ended with code 9\n")


@pytest.mark.parametrize(
    ("override", "message"),
    [("run.prompts=[]", "no prompt: give --prompt"), ("graphs.mode=eager", "graphs.mode = eager: nothing is replayed")],
)
def test_what_a_gate_needs_is_asked_before_another_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, message: str
) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text("model: {source: 'random:tiny'}\ndevice: cpu\nrun: {prompts: [hello]}\n")
    monkeypatch.setattr("runtime.cuda_probe.cuda_unavailable", lambda: None)
    monkeypatch.setattr(cli_gates, "_measure", lambda *_: pytest.fail("a gate was measured"))
    result = CliRunner().invoke(app, ["gates", "G3", "G4", "--config", str(config), "--set", override, "-q"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_the_command_refuses_what_it_does_not_know() -> None:
    refused = [
        (["G7"], "gate = G7: must be one of G1, G2"),
        (["G1", "--schedules", "bogus"], "must be one of G1, G2, G3, G4 (--schedules and --full take no value)"),
        (["--case", "k=2"], "case: k = 2"),
        (["--case", "k=3", "--schedules"], "--full and --schedules cannot choose beside it"),
        (["G1", "--record", "here"], "--record belong to what is measured; name G3 or G4"),
        (["--set", "device=cuda"], "name G3 or G4"),
        (["G3", "--record", "/dev/null/here"], "--record /dev/null/here: cannot be written"),
    ]
    for arguments, message in refused:
        result = CliRunner().invoke(app, ["gates", *arguments])
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.skipif(not SIMULATED, reason="this process was started for a GPU")
def test_the_whole_engine_thread_by_thread() -> None:
    """The same case in Numba's simulator, four threads a block: what a race between threads would change, it changes."""
    from graphs.simulator_executor import SimulatorExecutor

    case = Case(k=1, batch=3, prompt="k+1", accept="alternating", stop="max_tokens", seed=5)
    for gate in ("G1", "G2"):
        report = run_gate(gate, SimulatorExecutor(max_threads=4), cases=[case])
        assert report.verdict is Verdict.SATISFIED, render_reports([report])


def test_processes_say_what_one_says() -> None:
    """Checks, findings and figures in the same order, whoever played the cases; one of them cannot be played."""
    cases = [*itertools.islice(covering(), 0, None, 90), replace(SPECULATIVE, k=-1), replace(SPECULATIVE, seed=11)]
    here, apart = (run_gate("G1", EXECUTOR, cases=cases, workers=workers).as_dict() for workers in (1, 2))
    seconds = [report["figures"].pop("seconds") for report in (here, apart)]
    assert here == apart
    assert [(finding["axis"], finding["case"]) for finding in here["findings"]] == [("runs to its end", str(cases[-2]))]
    assert min(seconds) > 0


def test_few_cases_are_played_in_this_process() -> None:
    assert default_workers(1) == default_workers(WORTH_A_PROCESS) == 1
    assert 1 <= default_workers(10_000) <= (os.cpu_count() or 1)


def test_g2_without_speculation_is_not_measured() -> None:
    report = report_of("G2", Case(speculator="none", k=0))
    assert report.verdict is Verdict.NOT_MEASURED
    assert "NOT MEASURED" in render_reports([report])
