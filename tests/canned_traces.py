"""Traces made by hand: a step is a verify replay and a propose replay, at times that a test can compute in its head (us)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from runtime.phase_clock import Phase, PhaseSpan
from runtime.profile.analysis import Analysis
from runtime.profile.profile import Profile
from runtime.profile.trace import Activity, Kind, Mode, Replay, Trace

VERIFY, PROPOSE = "verify[R=1,T=5,q=5]", "propose[R=1]"
FAMILIES = {"norm_project": "products", "attend": "attention", "ngram_propose": "drafter"}
NS = 1000
STEP, VERIFY_US, PROPOSE_US = 100, 80, 10
"""A step of 100 us: 80 of verify, a gap of 4, 10 of propose, a gap of 6 in which a copy of 2 runs."""

FACTS = {
    "concurrency": 1,
    "device": "NVIDIA H200, compute capability 9.0",
    "model": {"source": "random:tiny", "dtype": "bfloat16"},
    "copy_bytes_per_s": 40e9,
}


def graph_trace(steps: int = 5, **changes: Any) -> Trace:
    """Graph mode, one row a replay. Launched one step ahead: the host launches step n at the beginning of step n - 1."""
    activities, replays, phases = [], [], []
    for step in range(steps + 1):
        at = 1000 + step * STEP
        activities += [
            Activity(Kind.GRAPH, "graph", at * NS, (at + VERIFY_US) * NS, "7", 2 * step + 1, 11),
            Activity(Kind.GRAPH, "graph", (at + 84) * NS, (at + 94) * NS, "7", 2 * step + 2, 12),
            Activity(Kind.MEMCPY, "HtoD", (at + 95) * NS, (at + 97) * NS, "7", nbytes=256),
        ]
        host = at - STEP
        replays += [
            Replay(VERIFY, (host + 10) * NS, (host + 12) * NS, True), Replay(PROPOSE, (host + 13) * NS, (host + 15) * NS, False),
        ]  # fmt: skip
        for phase, start, end in ((Phase.SCHEDULE, 0, 5), (Phase.STAGE, 5, 10), (Phase.LAUNCH, 10, 15), (Phase.COLLECT, 15, 90)):
            phases.append(PhaseSpan(phase, (host + start) * NS, (host + end) * NS, step))
        phases.append(PhaseSpan(Phase.DETOKENISE, (host + 90) * NS, (host + 100) * NS, step))
    launches = Counter(replay.key for replay in replays)
    trace = Trace(Mode.GRAPH, activities, replays, (0, 2 * steps), launches, phases, tokens=2 * steps, families=FAMILIES)
    return replace(trace, **changes)


def node_trace(steps: int = 5, slowed: int = 2, **changes: Any) -> Trace:
    """Node mode of the same step, every time `slowed` times as long: verify is 40 us of product, 30 of attention, 10 of nothing."""
    graph = graph_trace(steps)
    activities = []
    for number, row in enumerate(row for row in graph.activities if row.kind is Kind.GRAPH):
        base = 1000 * NS + (row.start - 1000 * NS) * slowed
        nodes = [("_ZN7kernels7project12norm_projectB2v1E", 0, 40), ("_ZN7kernels6attend6attendB2v2E", 50, 80)]
        if row.graph == 12:
            nodes = [("_ZN7kernels5ngram13ngram_proposeB2v1E", 0, 10)]
        activities += [
            Activity(Kind.KERNEL, name, base + start * slowed * NS, base + end * slowed * NS, "7", 100 + number, row.graph)
            for name, start, end in nodes
        ]
    trace = replace(graph, mode=Mode.NODE, activities=activities, family_bytes={VERIFY: {"products": 400_000}})
    return replace(trace, **changes)


def events_trace(steps: int = 5) -> Trace:
    """The untraced pass: replays as events of ours saw them, and nothing else."""
    graph = graph_trace(steps)
    rows = [replace(row, graph=0, launch=0) for row in graph.activities if row.kind is Kind.GRAPH]
    return replace(graph, mode=Mode.EVENTS, activities=rows)


def canned_profile() -> Profile:
    """As `--trace node` on a GPU leaves it."""
    traces = {Mode.EVENTS: events_trace(), Mode.GRAPH: graph_trace(), Mode.NODE: node_trace()}
    return Profile({mode: Analysis(replace(trace, facts=FACTS)) for mode, trace in traces.items()})
