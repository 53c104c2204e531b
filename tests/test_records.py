"""Records: what they claim, when they are refused, when they are stale."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from runtime import records
from runtime.cli import app
from runtime.cli_usage import exit_code_of
from runtime.config import load_config
from runtime.errors import ConfigError
from runtime.gates.verdict import Axis, GateReport, Verdict
from runtime.records import STEP_SOURCES, Record, read_records, render_records, sources_of
from runtime.source_digest import code_of, sources_digest

BUSY = Axis("busy, graph mode", 98.5, 98.0, "percent of the window, an upper bound")
UNDER = Axis("TPOT at concurrency 1", None, 0.02, "equal arms differ by up to 2.00 %", Verdict.UNDER_FLOOR)
WORKLOAD = {"model": "random:tiny", "concurrency": 1, "steps": 200}
FACTS = {"device": "NVIDIA H200, 132 SMs", "commit": "abc", "versions": {"numba": "0.61"}, "clocks": {"sm_mhz": 1980}}


def record(*axes: Axis, **changes: Any) -> Record:
    report = GateReport("G4", "the device does not wait for the host", axes or (BUSY,), (), {})
    return replace(Record.of(report, WORKLOAD, FACTS, "draftgraph gates G4"), **changes)


def rewritten(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    return path


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    written = record(BUSY, UNDER)
    path = written.write(tmp_path)
    assert path.name == f"{written.date[:10]}-g4-random-tiny.yaml"
    assert Record.read(path) == written
    assert written.verdict is Verdict.UNDER_FLOOR
    assert yaml.safe_load(path.read_text())["axes"][0]["verdict"] == "SATISFIED"


@pytest.mark.parametrize(
    "change",
    [
        {"axes": [BUSY.as_dict() | {"floor": 90.0}]},
        {"axes": [BUSY.as_dict() | {"value": 99.5}]},
        {"axes": [BUSY.as_dict() | {"detail": "percent"}]},
        {"title": "another"},
        {"date": "2026-11-28"},
        {"facts": FACTS | {"commit": "abd"}},
        {"command": "draftgraph gates G4 --device cuda"},
        {"sources": ["kernels/*.py"]},
        {"digest": "0" * 64},
        {"checksum": "0" * 64},
        {"remark": "a key of its own"},
    ],
    ids=str,
)
def test_a_record_that_was_edited_says_so(tmp_path: Path, change: dict[str, Any]) -> None:
    path = record().write(tmp_path)
    assert not Record.read(path).edited
    path.write_text("# a remark\n" + path.read_text().replace("'", '"'))
    assert not Record.read(path).edited, "it holds the same values"
    rewritten(path, **change)
    assert Record.read(path).edited
    assert "EDITED: not what was measured" in render_records(read_records(tmp_path)[0])
    values = json.loads(CliRunner().invoke(app, ["records", str(tmp_path), "--json"]).stdout)
    assert [entry["edited"] for entry in values["records"]] == [True]


def test_a_record_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = record().write(tmp_path)
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("checksum")))
    with pytest.raises(ConfigError, match="checksum: missing"):
        Record.read(path)


def test_a_checksum_survives_every_kind_of_value(tmp_path: Path) -> None:
    """Numbers that YAML may write otherwise than Python, keys that are numbers, texts that look like something else."""
    workload = {
        "a": [1e-07, 1e22, 0.1, 10**20, -0.0],
        "by_requests": {1: 5, 8: 3},
        "no": "no",
        "date": "2026-11-29",
        "b": None,
        "": "é",
    }
    path = replace(record(), workload=workload).write(tmp_path)
    assert not Record.read(path).edited


def test_a_record_holds_no_path_of_the_machine() -> None:
    inside = str(records.ROOT / "configs" / "smollm2.yaml")
    workload = {"model": "/cache/x/model.gguf", "config": {"draft": inside, "list": [inside, 3, None]}, "source": "hf:ORG/NAME"}
    command = f"draftgraph compare {inside} --set model.source=/cache/x/model.gguf --arms runner.async=true"
    report = GateReport("G4", "", (BUSY,), (), {})
    found = Record.of(report, workload, FACTS, command)
    assert found.workload == {
        "model": "model.gguf",
        "config": {"draft": "configs/smollm2.yaml", "list": ["configs/smollm2.yaml", 3, None]},
        "source": "hf:ORG/NAME",
    }
    assert found.command == "draftgraph compare configs/smollm2.yaml --set model.source=model.gguf --arms runner.async=true"
    assert found.facts == FACTS


def test_a_second_record_of_a_day_does_not_replace_the_first(tmp_path: Path) -> None:
    first, second = record().write(tmp_path), record().write(tmp_path)
    assert first != second
    assert [path for path, _ in read_records(tmp_path)[0]] == [first, second]


@pytest.mark.parametrize(
    ("axes", "claim"),
    [
        ((replace(BUSY, value=97.9),), "SATISFIED"),
        ((replace(BUSY, floor=None),), "SATISFIED"),
        ((replace(BUSY, value=None),), "SATISFIED"),
        ((BUSY, UNDER), "SATISFIED"),
        ((UNDER,), "RECORDED, no floor declared"),
    ],
)
def test_a_claim_that_the_axes_do_not_hold_is_refused(tmp_path: Path, axes: tuple[Axis, ...], claim: str) -> None:
    path = rewritten(record(*axes).write(tmp_path), verdict=claim)
    with pytest.raises(ConfigError, match=f"claims {claim}, and its axes hold"):
        Record.read(path)


def test_an_axis_cannot_be_given_a_pass(tmp_path: Path) -> None:
    path = record(replace(BUSY, value=50.0)).write(tmp_path)
    values = yaml.safe_load(path.read_text())
    values["axes"][0]["verdict"] = "SATISFIED"
    rewritten(path, axes=values["axes"], verdict="SATISFIED")
    with pytest.raises(ConfigError, match="its axes hold OPEN GAP"):
        Record.read(path)
    with pytest.raises(ValueError, match="never given"):
        Axis("x", 1.0, 2.0, "", Verdict.SATISFIED)


def test_a_workload_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = rewritten(record().write(tmp_path), workload=WORKLOAD | {"concurrency": 8})
    with pytest.raises(ConfigError, match="its workload was changed"):
        Record.read(path)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("record: G4\n")
    with pytest.raises(ConfigError, match="title, date, verdict"):
        Record.read(path)
    with pytest.raises(ConfigError, match="no such folder"):
        read_records(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": None}, "sources = None: must be a list"),
        ({"sources": [1]}, "sources: 1: must be a text"),
        ({"workload": [1]}, "workload = .1.: must be a mapping"),
        ({"facts": "H200"}, "facts = 'H200': must be a mapping"),
        ({"axes": {}}, "axes = {}: must be a list"),
        ({"command": 3}, "command = 3: must be a text"),
        ({"sources": []}, "sources: '': must be a pattern below the repository"),
        ({"sources": [""]}, "sources: '': must be a pattern below the repository"),
        ({"sources": ["/etc/*"]}, "sources: '/etc/.': must be a pattern below the repository"),
        ({"sources": ["kernels/../../*"]}, "must be a pattern below the repository"),
        ({"date": [1]}, ".1.: must be a date"),
        ({"workload": {1: 2, "a": 3}}, "what it holds has no checksum"),
        ({"date": "2026-13-45"}, "date = '2026-13-45': must be a date"),
    ],
    ids=str,
)
def test_what_has_the_wrong_type_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = rewritten(record().write(tmp_path), **change)
    with pytest.raises(ConfigError, match=message):
        Record.read(path)


@pytest.mark.parametrize("key", ["value", "floor"])
@pytest.mark.parametrize("figure", ["x", True, float("nan"), float("inf"), -1e301, 10**400], ids=lambda value: str(value)[:6])
def test_a_figure_that_nobody_can_have_measured_is_named(tmp_path: Path, key: str, figure: Any) -> None:
    axis = BUSY.as_dict() | {"verdict": "OPEN GAP", key: figure}
    path = rewritten(record().write(tmp_path), axes=[axis])
    with pytest.raises(ConfigError, match=f"axes: {key} = .*: must be a number below 1e.300 or null"):
        Record.read(path)


def test_a_record_that_holds_itself(tmp_path: Path) -> None:
    path = record().write(tmp_path)
    path.write_text(path.read_text().replace("facts:", "facts: &all\n  more: *all", 1))
    with pytest.raises(ConfigError, match="what it holds has no checksum"):
        Record.read(path)


def test_a_file_that_is_no_record_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is of those that are; then each that is not has its message, and the exit code is 2."""
    record().write(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("record: G4\n")
    for arguments in ((), ("--json",)):
        assert exit_code_of(app, ["records", str(tmp_path), *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out.count("G4") == 1
        lines = captured.err.splitlines()
        assert [line.split(":")[1].strip() for line in lines] == [f"record = {tmp_path / name}" for name in ("a.yaml", "b.yaml")]
        assert all(line.startswith("error: ") and line.endswith("with `draftgraph gates --record`") for line in lines)
    values = json.loads(captured.out)
    assert [entry["file"] for entry in values["refused"]] == ["a.yaml", "b.yaml"]


def test_a_file_that_is_no_record_is_not_called_a_config(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"record = .*a\.yaml: empty; measure it again"):
        Record.read(path)


def test_a_record_is_stale_once_a_source_changes_appears_or_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "kernels"
    sources.mkdir()
    (sources / "a.py").write_text("x = 1\n")
    patterns = ("kernels/*.py",)
    monkeypatch.setattr(records, "sources_digest", lambda patterns, root: sources_digest(patterns, tmp_path))
    fresh = record(sources=patterns, digest=sources_digest(patterns, tmp_path))
    assert not fresh.stale
    (tmp_path / "other.py").write_text("")
    assert not fresh.stale
    (sources / "a.py").write_text("x = 2\n")
    assert fresh.stale
    (sources / "a.py").write_text("x = 1\n")
    assert not fresh.stale
    (sources / "a.py").write_text('"""What it is."""\n\nx = 1  # the reason\n')
    assert not fresh.stale
    (sources / "b.py").write_text("")
    assert fresh.stale
    (sources / "b.py").unlink()
    (sources / "a.py").rename(sources / "c.py")
    assert fresh.stale


SOURCE = '''"""A module.

Two lines."""
# ä comment
import os  # why


class A:
    """Docstring with 'quotes' and # no comment."""

    x: int = 1
    """Below an attribute."""

    def f(self, text="# no comment"):
        """ä""" ; y = "ü"  # trailing
        return f"{text} # none"
'''
CODE = '''import os
class A:
    x: int = 1
    def f(self, text="# no comment"):
         ; y = "ü"
        return f"{text} # none"'''


def test_code_is_what_is_left_without_comments_docstrings_and_blank_lines() -> None:
    assert code_of(SOURCE) == CODE
    assert code_of("def f(:\n  # broken\n") == "def f(:\n  # broken\n"
    assert code_of("x = 1\n") != code_of("x = 2\n")


def test_a_measurement_with_a_drafter_speaks_of_its_weights() -> None:
    base = {"model": {"source": "random:tiny"}}
    assert sources_of(load_config(base)) == STEP_SOURCES
    drafting = load_config(records.ROOT / "configs" / "smollm2.yaml")
    assert sources_of(drafting)[len(STEP_SOURCES) :] == (
        "configs/drafters/smollm2-dflash2/*.json", "configs/drafters/smollm2-dflash2/*.safetensors",
    )  # fmt: skip
    assert sources_of(load_config(drafting, speculator__method="none")) == STEP_SOURCES
    assert sources_of(load_config(base, speculator={"method": "dflash", "draft_source": "random:dflash2"})) == STEP_SOURCES


def test_a_drafter_that_was_trained_anew_is_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\xff\x00# no comment")
    first = sources_digest(("*.safetensors",), tmp_path)
    weights.write_bytes(b"\xff\x00")
    assert sources_digest(("*.safetensors",), tmp_path) != first


def test_every_pattern_of_the_step_finds_sources() -> None:
    assert [pattern for pattern in STEP_SOURCES if not list(records.ROOT.glob(pattern))] == []


def test_the_table_shows_verdicts_figures_and_staleness(tmp_path: Path) -> None:
    record(BUSY, UNDER).write(tmp_path)
    record(sources=("kernels/*.py",), digest="0" * 64).write(tmp_path)
    text = render_records(read_records(tmp_path)[0])
    assert text.count("STALE") == 1
    assert "98.5  floor      98  SATISFIED" in text
    assert "UNDER THE FLOOR: equal arms differ" in text
    result = CliRunner().invoke(app, ["records", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stdout.rstrip("\n") == text
    values = json.loads(CliRunner().invoke(app, ["records", str(tmp_path), "--json"]).stdout)
    assert [entry["stale"] for entry in values["records"]] == [False, True]


def test_arms_are_shown_as_ratios(tmp_path: Path) -> None:
    axis = Axis("time per token at concurrency 1", math.log(1.91), math.log(1.0007), "the first arm is better")
    record(axis, workload=WORKLOAD | {"arms": ["a=1", "a=2"]}).write(tmp_path)
    assert "1.910x  floor  0.07 %  SATISFIED" in render_records(read_records(tmp_path)[0])


def test_the_records_of_the_repository_are_as_they_were_written() -> None:
    found, refused = read_records(records.RECORDS)
    assert not refused
    assert [path.name for path, record in found if record.edited] == []
    assert "EDITED" not in render_records(found)
