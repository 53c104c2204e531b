"""G3 and G4: their verdicts on what was measured, and on a machine that cannot measure it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime import cuda_probe
from runtime.cli import app
from runtime.compare_arms import Arm
from runtime.config import load_config
from runtime.gates import g3, g4
from runtime.gates.measured import Measured
from runtime.gates.table import render_reports
from runtime.gates.verdict import Verdict
from runtime.profile.analysis import Analysis
from runtime.profile.profile import Profile
from runtime.profile.trace import Kind, Mode, Trace
from runtime.records import Record
from tests.canned_traces import FACTS, NS, canned_profile, graph_trace, node_trace
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny


def filled(trace: Trace) -> Trace:
    """The same trace without its gaps: each replay lasts to the beginning of the next."""
    rows = sorted((row for row in trace.activities if row.kind is not Kind.MEMCPY), key=lambda row: row.start)
    ends = [late.start for late in rows[1:]] + [rows[-1].end]
    return replace(trace, activities=[replace(row, end=end) for row, end in zip(rows, ends, strict=True)], facts=FACTS)


def g4_of(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(g4, "profile", lambda *arguments, **options: profile)
    return g4.check_g4(load_config({"model": {"source": "random:tiny"}}), ["a", "b"], quiet=True)


def test_a_device_that_idles_between_replays_is_an_open_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = g4_of(canned_profile(), monkeypatch)
    verdicts = {axis.name: axis.verdict for axis in found.report.axes}
    assert verdicts == {
        "busy, graph records": Verdict.OPEN_GAP,
        "busy, node records": Verdict.OPEN_GAP,
        "graph pass is true": Verdict.SATISFIED,
    }
    assert found.report.axes[0].value == pytest.approx(92.0)
    assert "upper bound" in found.report.axes[0].detail
    assert re.search(r"idle [\d.]+ us a step, largest gap [\d.]+ us$", found.report.axes[0].detail)
    assert found.report.verdict is Verdict.OPEN_GAP
    text = render_reports([found.report])
    assert "6.0 us propose[R=1] -> verify[R=1,T=5,q=5]: queued in time" in text
    assert "inside verify[R=1,T=5,q=5], which the node records made +80.0 us long" in text
    assert "10.0 us norm_project -> attend: 1 of 20.00 us" in text


def test_a_device_without_gaps_satisfies(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {**canned_profile().passes, Mode.GRAPH: Analysis(filled(graph_trace())), Mode.NODE: Analysis(filled(node_trace()))}
    found = g4_of(Profile(passes), monkeypatch)
    assert found.report.verdict is Verdict.SATISFIED
    assert [axis.value for axis in found.report.axes] == [pytest.approx(100.0), pytest.approx(100.0), pytest.approx(1.0)]


def test_a_graph_pass_that_was_slowed_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = filled(graph_trace())
    stretched = [replace(row, start=row.start + i * NS * 3, end=row.end + i * NS * 3) for i, row in enumerate(slow.activities)]
    passes = {**canned_profile().passes, Mode.GRAPH: Analysis(replace(slow, activities=stretched))}
    axes = g4_of(Profile(passes), monkeypatch).report.axes
    assert (axes[2].verdict, axes[2].value) == (Verdict.OPEN_GAP, pytest.approx(0.94))


def test_g3_compares_the_two_runners_at_both_concurrencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g3, "INPUT_LEN", 4)
    monkeypatch.setattr(g3, "OUTPUT_LEN", 6)
    write_tiny_checkpoint(tmp_path / "model", LOOPING)

    @contextmanager
    def open_arm(arm: Arm) -> Iterator[Any]:
        options = {"runner__async": arm.config.runner.async_, "scheduler__max_num_seqs": 8}
        with open_tiny(tmp_path / "model", k=0, poison=False, **options) as engine:
            yield engine

    found = g3.check_g3(load_config({"model": {"source": "random:tiny"}}), open_arm, lambda done, total: None)
    assert [axis.name for axis in found.report.axes] == [
        "time per token at concurrency 1", "throughput at concurrency 1",
        "time per token at concurrency 8", "throughput at concurrency 8",
    ]  # fmt: skip
    told = {Verdict.SATISFIED, Verdict.UNDER_FLOOR, Verdict.OPEN_GAP}
    for axis in found.report.axes:
        assert axis.verdict in told
        assert axis.floor is not None
        assert (axis.value is None) == (axis.verdict is Verdict.UNDER_FLOOR)
    names = ["tpot_ms at 1", "tokens_per_s at 1", "tpot_ms at 8", "tokens_per_s at 8"]
    told_apart = [name for name, axis in zip(names, found.report.axes, strict=True) if axis.value is not None]
    assert list(found.facts["medians"]) == told_apart
    assert render_reports([found.report]).count(" against ") == len(told_apart)
    record = Record.of(found.report, found.workload, found.facts, "draftgraph gates G3")
    assert Record.read(record.write(tmp_path)) == record


@pytest.mark.skipif(cuda_probe.cuda_unavailable() is None, reason="a GPU is here, so they would be measured")
def test_without_a_gpu_they_are_not_measured_and_that_is_no_pass() -> None:
    result = CliRunner().invoke(app, ["gates", "G3", "g4", "--json", "-q"])
    assert result.exit_code == 1
    values = json.loads(result.stdout)
    assert not values["satisfied"]
    assert [(gate["gate"], gate["verdict"]) for gate in values["gates"]] == [("G3", "NOT MEASURED"), ("G4", "NOT MEASURED")]
    assert all("needs a GPU" in axis["detail"] for gate in values["gates"] for axis in gate["axes"])
    text = CliRunner().invoke(app, ["gates", "G4", "-q"])
    assert text.exit_code == 1
    assert "G4  the device does not wait for the host: NOT MEASURED" in text.stdout
    assert "G3" not in text.stdout + text.stderr
    assert values["not_measured"] == []


def test_the_gates_that_need_no_gpu_pass_without_one_and_name_those_that_were_left() -> None:
    case = "k=3 batch=3"
    result = CliRunner().invoke(app, ["gates", "--case", case, "-q"])
    assert result.exit_code == 0, result.output
    assert "G3 and G4: NOT MEASURED here, and that is no pass" in result.stderr
    assert "G3" not in result.stdout
    values = json.loads(CliRunner().invoke(app, ["gates", "G1", "--case", case, "--json", "-q"]).stdout)
    assert values["satisfied"]
    assert values["not_measured"] == ["G3", "G4"]
