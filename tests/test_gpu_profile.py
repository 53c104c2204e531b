"""The profiler on a GPU: its passes agree with our counters, with each other, and with what a device can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.config import load_config
from runtime.profile import session
from runtime.profile.analysis import Analysis
from runtime.profile.profile import Profile
from runtime.profile.table import render_profile
from runtime.profile.trace import Kind, Mode
from runtime.profile.workload import Workload
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import LOOPING

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("cupti", reason="CUPTI is not installed: extra profile")
    folder = tmp_path_factory.mktemp("gpu_profile") / "model"
    write_tiny_checkpoint(folder, LOOPING)
    return load_config(
        {
            "model": {"source": str(Path(folder)), "dtype": "bfloat16"},
            "device": "cuda",
            "scheduler": {"max_num_seqs": 2, "max_model_len": 256, "max_num_batched_tokens": 32, "block_size": 4},
            "speculator": {"method": "ngram", "num_speculative_tokens": 2},
            "run": {"chat": False},
        }
    )


@pytest.fixture(scope="module")
def profile(config: Any) -> Profile:
    """Making an Analysis of each pass has checked its records against our own counters."""
    prompts = [[5, 6, 7], [8, 9]]
    return session.profile(config, prompts, Mode.NODE, lambda _: pytest.fail("no pass in this process"), steps=40, calls=True)


def test_the_passes_agree(profile: Profile) -> None:
    record = profile.as_dict()
    keys = {mode: set(analysis.replays_by_key()) for mode, analysis in profile.passes.items()}
    assert keys[Mode.EVENTS] == keys[Mode.GRAPH] == keys[Mode.NODE]
    graph, node = record["passes"]["graph"], record["passes"]["node"]
    assert 0 < node["busy_percent"] <= 100
    assert 0 < graph["busy_percent"] <= 100
    for shares in node["shares"].values():
        assert sum(share["percent"] for share in shares) == pytest.approx(100.0)
        assert {share["family"] for share in shares}.isdisjoint({"other"}), shares


def test_the_host_waits_for_the_outcome_of_each_step_and_for_nothing_else(profile: Profile) -> None:
    """Planted waits, which this must report, are in tests/test_gpu_waits.py."""
    assert profile.as_dict()["host_calls"] == {
        "steps": 30,
        "waits": {"cudaEventSynchronize for an event of copy": 30},
        "findings": [],
    }
    assert "no other call waits, and our counters say the same" in render_profile(profile.as_dict())


def test_a_replay_of_the_node_pass_has_a_record_for_each_node_of_its_graph(profile: Profile) -> None:
    node = profile.passes[Mode.NODE]
    launched = {str(number): len(rows) for number, rows in enumerate(node.nodes)}
    assert all(count > 0 for count in launched.values())
    kinds = {activity.kind for rows in node.nodes for activity in rows}
    assert Kind.KERNEL in kinds
    assert Kind.GRAPH not in kinds


def test_a_graph_pass_has_one_record_a_replay_and_none_of_what_is_inside(profile: Profile) -> None:
    trace = profile.passes[Mode.GRAPH].trace
    rows = [activity for activity in trace.activities if activity.kind is Kind.GRAPH]
    assert len(rows) == len(trace.replays) == sum(trace.launches.values())
    assert not any(activity.graph for activity in trace.activities if activity.kind is not Kind.GRAPH)


def test_a_replay_runs_after_the_host_has_launched_it(profile: Profile) -> None:
    """The two clocks agree: no replay begins before the host began to launch it."""
    for mode in (Mode.GRAPH, Mode.NODE):
        analysis = profile.passes[mode]
        pairs = zip(analysis.trace.replays, analysis.spans, strict=True)
        assert max(replay.start - begin for replay, (begin, _) in pairs) < 5_000, "nanoseconds"


def test_kernels_overlap_where_they_may_and_nowhere_else(config: Any, profile: Profile) -> None:
    ordered = load_config(config, graphs__overlap=False)
    analysis = Analysis(session.pass_in_child(ordered, Mode.NODE, Workload([[5, 6, 7]], 4, 10), quiet=True))
    assert not any(analysis.overlaps(key) for key in analysis.replays_by_key())
    node = profile.passes[Mode.NODE]
    assert any(node.overlaps(key) for key in node.replays_by_key())


def test_two_concurrent_requests_are_in_one_replay(config: Any) -> None:
    trace = session.pass_in_child(config, Mode.GRAPH, Workload([[5, 6, 7], [8, 9]], 4, 10), quiet=True)
    assert set(trace.launches) >= {"verify[R=2,T=6,q=3]", "propose[R=2]"}
