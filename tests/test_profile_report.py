"""What a profile says of a GPU, by canned traces: figures, table, page, picture and trace file."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import ConfigError
from runtime.profile import session
from runtime.profile.analysis import Analysis
from runtime.profile.chrome_trace import chrome_trace
from runtime.profile.lanes import Bar, lanes_of, middle_steps, stream_name
from runtime.profile.page import _axis, render_page, tick_ns
from runtime.profile.profile import Profile
from runtime.profile.table import render_profile
from runtime.profile.trace import Mode
from tests.canned_traces import FACTS, NS, VERIFY, canned_profile, events_trace, graph_trace


def test_each_figure_comes_from_the_pass_that_can_tell_it() -> None:
    record = canned_profile().as_dict()
    passes = record["passes"]
    assert record["step_ms"] == pytest.approx(0.1)
    assert record["tpot_ms"] == pytest.approx(0.05)  # two tokens a step
    assert passes["graph"]["busy_percent"] == pytest.approx(92.0)
    assert passes["graph"]["busy_is_upper_bound"]
    assert not passes["node"]["busy_is_upper_bound"]
    assert "busy_percent" not in passes["events"]
    assert "step_ms" not in passes["node"]
    assert passes["graph"]["gaps"]["largest"][0]["us"] == pytest.approx(6.0)
    products = passes["node"]["shares"][VERIFY][0]
    assert (products["us"], products["gigabytes_per_s"], products["percent_of_copy"]) == (
        pytest.approx(40.0), pytest.approx(10.0), pytest.approx(25.0),
    )  # fmt: skip
    assert record["checks"] == {
        "graph_step_over_truth": pytest.approx(1.0),
        "graph_pass_is_true": True,
        "node_step_over_truth": pytest.approx(2.0),
        "node_pass_slowed_too_much": True,
    }


def test_a_graph_pass_that_ran_slower_than_the_truth_is_called_not_true() -> None:
    profile = canned_profile()
    slow = replace(graph_trace(), facts=FACTS)
    times = [replace(row, start=2 * row.start, end=2 * row.end) for row in slow.activities]
    record = Profile({**profile.passes, Mode.GRAPH: Analysis(replace(slow, activities=times))}).as_dict()
    assert not record["checks"]["graph_pass_is_true"]
    assert "NOT TRUE" in render_profile(record)


def test_the_table_of_a_gpu_names_bounds_gaps_and_doubts() -> None:
    text = render_profile(canned_profile().as_dict())
    assert "<=92.00" in text
    assert "(0.200)" in text  # the node pass has no step time
    assert "queued in time" in text
    assert "25 % of a copy's rate" in text
    assert "doubt its proportions" in text
    assert "10.0 us     1.0 of 20.00 us  norm_project -> attend" in text
    assert "made the whole replay +80.0 us long" in text


@pytest.mark.parametrize(("most", "label"), [(40, VERIFY), (19, VERIFY), (18, "verify"), (6, "verify"), (5, ""), (0, "")])
def test_a_bar_says_as_much_as_fits_into_it(most: float, label: str) -> None:
    assert Bar(0, 1, VERIFY, "verify").label(most) == label
    assert Bar(0, 1, "", "verify").label(most) == ""


def test_a_stream_that_has_a_name_goes_by_it() -> None:
    trace = events_trace()
    named = Analysis(replace(trace, activities=[replace(row, stream="compute") for row in trace.activities]))
    assert stream_name(named, "compute") == "GPU: compute"
    assert stream_name(Analysis(graph_trace()), "7") == "GPU: compute (7)"


def test_the_trace_file_has_a_lane_for_host_and_device_and_an_arrow_a_replay() -> None:
    profile = canned_profile()
    events = chrome_trace(profile.passes)["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lanes == {"host", "GPU: compute (7)"}
    graph = [event for event in events if event["pid"] == 2]
    assert sum(event["ph"] == "s" for event in graph) == sum(event["ph"] == "f" for event in graph) == 10
    assert {"schedule", "stage", "launch", "collect", "detokenise", VERIFY} <= {event["name"] for event in graph}
    assert all(event["dur"] > 0 for event in graph if event["ph"] == "X")
    json.dumps(events)


def test_the_page_opens_by_itself() -> None:
    profile = canned_profile()
    page = render_page(profile.passes, profile.as_dict())
    assert page.count("<svg") == 3
    assert "<title>norm_project: 80.0 us</title>" in page  # the node pass as it ran
    assert "http" not in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("length", "ticks"), [(300, "0 us,0.05 us"), (1_300_000, "0 ms,0.2 ms"), (1_300_000_000, "0 ms,200 ms")]
)
def test_the_axis_of_the_page_is_in_a_unit_that_fits(length: int, ticks: str) -> None:
    found = re.findall(">([^<]+)</text>", "".join(_axis(length, 1.0, 30)))
    assert ",".join(found).startswith(ticks)
    assert all("e+" not in tick for tick in found)


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="extra profile is not installed")
    profile = canned_profile()
    files, missing = session.write_files(profile, profile.as_dict(), tmp_path / "a" / "b")
    assert missing is None
    assert files[-1].read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_everything_else_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    profile = canned_profile()
    files, missing = session.write_files(profile, profile.as_dict(), tmp_path)
    assert "pip install draftgraph[profile]" in (missing or "")
    assert sorted(file.name for file in files) == ["profile.html", "profile.json", "trace.json"]


def test_a_folder_that_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profile = canned_profile()
    with pytest.raises(ConfigError, match="cannot be written"):
        session.write_files(profile, profile.as_dict(), tmp_path / "file")
    (tmp_path / "dir" / "trace.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--out .*trace\.json: cannot be written: Is a directory"):
        session.write_files(profile, profile.as_dict(), tmp_path / "dir")


def test_bars_are_cut_to_what_is_shown() -> None:
    analysis = Analysis(graph_trace())
    begin, end = middle_steps(analysis, 3)
    assert end - begin == 300 * NS
    lanes = lanes_of(analysis, begin + 10 * NS, begin + 20 * NS)
    assert [lane.name for lane in lanes] == ["host", "GPU: compute (7)"]
    assert all(begin + 10 * NS <= bar.start < bar.end <= begin + 20 * NS for lane in lanes for bar in lane.bars)


@pytest.mark.parametrize(("length", "expected"), [(300, 50), (1000, 100), (5_300_000, 500_000), (12, 1)])
def test_ticks_are_round(length: int, expected: int) -> None:
    assert tick_ns(length) == expected
