"""Waits of the host by a tracer's records: what is told of them, and that a wait which was planted in a step is found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.engine import Engine
from runtime.errors import DeviceError
from runtime.profile import session
from runtime.profile.collectors import Collector
from runtime.profile.cupti_collector import collect
from runtime.profile.host_calls import (
    COUNTED,
    ORDERS,
    ApiCall,
    EventRecord,
    HostCall,
    HostCalls,
    SyncRecord,
    joined,
    plain_name,
)
from runtime.profile.one_pass import collector_of
from runtime.profile.profile import Profile
from runtime.profile.table import render_profile
from runtime.profile.trace import Mode, Trace, TraceRefusedError
from tests.canned_traces import canned_profile, graph_trace
from tests.fake_cupti import FakeCupti, traced_idle_gpu
from tests.host_step import _answer
from tests.planted_waits import HOST, PLANTED, config_of, planted, traced

NAMES = {7: "compute", 8: "copy"}
NONE = 0xFFFFFFFF


def api(name: str, start: int, end: int, correlation: int = 1, thread: int = 1) -> ApiCall:
    return ApiCall(name, start, end, thread, correlation)


def judged(*calls: HostCall, allowed: str = "copy", **counted: int) -> list[str]:
    """Findings; counters that are not named count what the trace does."""
    made = HostCalls(1, allowed, calls)
    ours = {name: 0 for names in COUNTED for name in names}
    for names, known in COUNTED.items():
        ours[names[0]] = sum(call.name in known for call in made.calls)
    return HostCalls(1, allowed, calls, ours | counted).findings()


# --- records to calls


def test_calls_within_a_call_belong_to_it_and_bring_their_waits() -> None:
    calls = [
        api("cuEventSynchronize", 12, 18, 2),
        api("cudaEventSynchronize_v3020", 10, 20, 1),
        api("cudaGraphLaunch_v10000", 20, 30, 3),
        api("cuGraphLaunch", 21, 30, 4),
        api("cudaEventQuery_v3020", 12, 13, 5, thread=2),
    ]
    syncs = [SyncRecord("event", 2, NONE, 40)]
    found = joined(calls, syncs, [EventRecord(40, 8), EventRecord(41, 7)], [], NAMES)
    assert [(call.name, call.inside, call.waits) for call in found] == [
        ("cudaEventSynchronize", ("cuEventSynchronize",), ("an event of copy",)),
        ("cudaEventQuery", (), ()),
        ("cudaGraphLaunch", ("cuGraphLaunch",), ()),
    ]


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        (SyncRecord("event", 1, NONE, 40), ("an event of copy",)),
        (SyncRecord("event", 1, NONE, 41), ("an event of compute",)),
        (SyncRecord("event", 1, NONE, 42), ("an event of stream 9",)),
        (SyncRecord("event", 1, NONE, 43), ("an event whose recording was not seen",)),
        (SyncRecord("stream", 1, 7, NONE), ("stream compute",)),
        (SyncRecord("stream", 1, 9, NONE), ("stream 9",)),
        (SyncRecord("context", 1, NONE, NONE), ("everything",)),
        (SyncRecord("unknown", 1, NONE, NONE), ("everything",)),
        (SyncRecord(ORDERS, 1, 7, 40), ()),
        (SyncRecord("stream", 2, 7, NONE), ()),
    ],
)
def test_what_a_wait_was_for(sync: SyncRecord, said: tuple[str, ...]) -> None:
    recorded = [EventRecord(40, 8), EventRecord(41, 7), EventRecord(42, 9)]
    (call,) = joined([api("cudaAny_v1", 0, 1)], [sync], recorded, [], NAMES)
    assert call.waits == said


def test_names_lose_their_versions() -> None:
    names = ("cudaMemcpyAsync_ptsz_v7000", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize_ptsz", "cuGraphLaunch")
    assert [plain_name(name) for name in names] == ["cudaMemcpyAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuGraphLaunch"]


# --- calls to a verdict


def test_a_step_as_it_should_be() -> None:
    names = ("cudaMemcpyAsync", "cudaEventRecord", "cudaGraphLaunch", "cudaStreamWaitEvent")
    calls = [HostCall(name, 0, 1) for name in names]
    look = HostCall("cudaEventQuery", 2, 3, waits=("an event of compute",))  # looked at, and not waited for
    wait = HostCall("cudaEventSynchronize", 3, 4, ("cuEventSynchronize",), ("an event of copy",))
    assert judged(*calls, look, wait) == []
    assert dict(HostCalls(1, "copy", [*calls, look, wait]).waits()) == {"cudaEventSynchronize for an event of copy": 1}


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (HostCall("cudaStreamSynchronize", 0, 1, waits=("stream compute",)), "cudaStreamSynchronize waits for stream compute"),
        (HostCall("cuCtxSynchronize", 0, 1, waits=("everything",)), "cuCtxSynchronize waits for everything"),
        (HostCall("cudaMemcpy", 0, 1), "cudaMemcpy is not known to return at once"),
        (HostCall("cudaNewCall", 0, 1), "cudaNewCall is not known to return at once"),
        (HostCall("cudaGraphLaunch", 0, 1, ("cuCtxSynchronize",)), "cuCtxSynchronize within cudaGraphLaunch is not known"),
        (HostCall("cudaMemcpyAsync", 0, 1, pageable=True), "cudaMemcpyAsync copies pageable memory"),
        (HostCall("cudaMemcpyAsync", 0, 1, waits=("stream compute",)), "cudaMemcpyAsync for stream compute"),
        (HostCall("cudaEventSynchronize", 0, 1, waits=("an event of compute",)), "for an event of compute; an event of copy is"),
        (HostCall("cudaEventSynchronize", 0, 1), "for what the tracer does not say; an event of copy is the one allowed"),
        (
            HostCall("cudaEventSynchronize", 0, 1, waits=("an event of copy", "stream compute")),
            "for an event of copy and stream compute; an event of copy is the one allowed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_each_way_to_wait_is_reported(call: HostCall, fault: str) -> None:
    (found,) = judged(call, call)
    assert fault in found
    assert found.endswith(": 2 times in 1 steps")


def test_where_memory_is_shared_the_outcome_is_there_with_the_compute_stream() -> None:
    wait = HostCall("cudaEventSynchronize", 0, 1, waits=("an event of compute",))
    assert judged(wait, allowed="compute") == []


@pytest.mark.parametrize(("names", "known"), COUNTED.items(), ids=lambda value: " ".join(sorted(value)))
def test_counters_that_say_something_else_are_reported(names: tuple[str, ...], known: frozenset[str]) -> None:
    (found,) = judged(**{names[-1]: 3})
    assert found == f"our counters have 3 {' + '.join(names)}, the trace 0 of {', '.join(sorted(known))}"


def test_calls_survive_a_file() -> None:
    call = HostCall("cudaEventSynchronize", 3, 4, ("cuEventSynchronize",), ("an event of copy",))
    calls = HostCalls(2, "copy", [call], {"event_synchronizes": 1})
    trace = graph_trace(host_calls=calls)
    assert Trace.from_dict(json.loads(json.dumps(trace.as_dict()))).host_calls == calls


# --- a profile


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([HostCall("cudaEventSynchronize", 0, 1, waits=("an event of copy",))], "for an event of copy: no other call waits"),
        (
            [HostCall("cudaStreamSynchronize", 0, 1, waits=("stream compute",))],
            "for stream compute: NOT AS IT SHOULD BE\n  cudaStreamSynchronize waits for stream compute: 1 times in 1 steps",
        ),
        ([], "waits of the host in 1 steps, by records of every call into CUDA: none: no other"),
    ],
)
def test_a_profile_says_what_the_host_waited_for(calls: list[HostCall], said: str) -> None:
    ours = {name: 0 for names in COUNTED for name in names}
    for names, known in COUNTED.items():
        ours[names[0]] = sum(call.name in known for call in calls)
    profile = Profile(canned_profile().passes, HostCalls(1, "copy", calls, ours))
    record = profile.as_dict()
    assert said in render_profile(record)
    assert json.dumps(record["host_calls"])


@pytest.mark.parametrize("calls", [True, False])
def test_the_pass_of_calls_is_one_more_and_times_nothing(monkeypatch: pytest.MonkeyPatch, calls: bool) -> None:
    found = HostCalls(5, "copy", [], {name: 0 for names in COUNTED for name in names})
    traces = {mode: analysis.trace for mode, analysis in canned_profile().passes.items()}
    traces[Mode.CALLS] = graph_trace(mode=Mode.CALLS, activities=[], host_calls=found)
    ran = []

    def child(config: Any, mode: Mode, workload: Any, *, quiet: bool) -> Trace:
        ran.append((mode, workload.steps))
        return traces[mode]

    monkeypatch.setattr(session, "resolve_kind", lambda device: ("cuda", "asked for"))
    monkeypatch.setattr(session, "refuse_unprofiled", lambda config: None)
    monkeypatch.setattr(session, "pass_in_child", child)
    profile = session.profile(config_of("plain"), [[1]], Mode.NODE, lambda _: pytest.fail("no pass in this process"), calls=calls)
    passes = [(Mode.EVENTS, 200), (Mode.GRAPH, 200), (Mode.NODE, 30)]
    assert ran == ([*passes, (Mode.CALLS, 30)] if calls else passes)
    assert set(profile.passes) == {Mode.EVENTS, Mode.GRAPH, Mode.NODE}
    assert profile.host_calls == (found if calls else None)
    traces[Mode.CALLS].dropped = 3
    if calls:
        with pytest.raises(TraceRefusedError, match="calls trace: 3 records were dropped"):
            session.profile(config_of("plain"), [[1]], Mode.NODE, lambda _: pytest.fail("no pass"), calls=True)


# --- an engine on a GPU that does nothing


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[Collector, Engine, FakeCupti]]:
    with traced_idle_gpu() as (module, cupti):
        collector = collector_of(Mode.CALLS)
        with Engine.from_config(config_of("ngram"), on_device=module.CudaDevice(), graphs__ops="plain") as engine:
            _answer(engine, num_drafts=0, num_sampled=1)
            cupti.pageable.add(HOST.ctypes.data)
            yield collector, engine, cupti


def test_a_steady_engine_waits_for_the_copy_stream_and_for_nothing_else(rig: Any) -> None:
    collector, engine, _ = rig
    calls = traced(config_of("ngram"), collector, engine)
    assert calls.findings() == []
    assert dict(calls.waits()) == {"cudaEventSynchronize for an event of copy": calls.steps}
    assert calls.counted["graph_launches"] == 2 * calls.steps


@pytest.mark.parametrize("mode", [Mode.CALLS, Mode.NODE])
def test_a_tracer_that_refuses_says_what_to_do(rig: Any, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    def refuse(kind: int) -> None:
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    collector, engine, cupti = rig
    monkeypatch.setattr(cupti, "activity_enable", refuse)
    with pytest.raises(DeviceError, match=r"^CUPTI: .*MULTIPLE_SUBSCRIBERS.*; end other profilers.*'cupti-python<13'"):
        collector_of(mode)
    monkeypatch.undo()
    collector_of(Mode.CALLS)  # one may be made anew
    collect(cupti, (), collector._take)
    assert traced(config_of("ngram"), collector, engine).findings() == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wait_is_reported(rig: Any, name: str) -> None:
    collector, engine, _ = rig
    fault, said = PLANTED[name]
    with planted(engine.runner, fault):
        calls = traced(config_of("ngram"), collector, engine)
    findings = calls.findings()
    assert re.search(rf"({said}).*: {calls.steps} times", findings[0]), findings
    assert (len(findings) > 1) == (name in ("stream", "device", "driver")), "what our counters do not see, and what they do"
    assert traced(config_of("ngram"), collector, engine).findings() == []
