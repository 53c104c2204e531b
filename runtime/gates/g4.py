"""Gate G4, on a GPU: does the device wait for the host? Busy share of a decode at concurrency 1, by graph and by node records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from runtime.config import RunConfig
from runtime.gates.measured import Measured, not_measured
from runtime.gates.verdict import Axis, GateReport
from runtime.intake import Expects
from runtime.profile.profile import TRUE_WITHIN, Profile, explained
from runtime.profile.session import profile
from runtime.profile.trace import Mode
from runtime.prompts import Prompt

TITLE = "the device does not wait for the host"
FLOORS = {Mode.GRAPH: 98.0, Mode.NODE: 97.0}
"""Percent of the window. Graph records count gaps inside a replay as busy; node records do not, and slow the run."""

NAMES = ("busy, graph records", "busy, node records", "graph pass is true")


def check_g4(config: RunConfig, prompts: Sequence[Prompt], *, quiet: bool) -> Measured:
    """Profile one request and hold the busy shares against their floors.

    Raises: as runtime.profile.session.profile.
    """
    found = profile(config, prompts[:1], Mode.NODE, _never, quiet=quiet)
    record = found.as_dict()
    axes = [_busy(found, mode, name) for mode, name in zip(FLOORS, NAMES, strict=False)]
    off = record["checks"]["graph_step_over_truth"] - 1.0
    detail = f"its step takes {100 * off:+.2f} % of the untraced pass"
    axes.append(Axis(NAMES[2], 1.0 - abs(off), 1.0 - TRUE_WITHIN, detail))
    workload = {"model": config.model.source, "concurrency": 1, "steps": found.truth.trace.steps, "config": config.as_dict()}
    figures = {
        "step_ms": record["step_ms"],
        "node_step_over_truth": record["checks"]["node_step_over_truth"],
        "largest_gaps": [
            f"{gap['us']:.1f} us {gap['before']} -> {gap['after']}: {explained(gap['cause'])}"
            for gap in record["passes"]["graph"]["gaps"]["largest"]
        ],
        "gaps_inside": _gaps_inside(record["passes"]["node"]),
    }
    facts = record["facts"] | figures
    return Measured(GateReport("G4", TITLE, tuple(axes), (), figures), workload, facts)


def without_gpu(reason: str) -> GateReport:
    return not_measured("G4", TITLE, NAMES, reason)


def _busy(found: Profile, mode: Mode, name: str) -> Axis:
    busy = found.passes[mode].busy()
    idle_us = sum(end - start for start, end in busy.idle) / 1e3 / found.passes[mode].trace.steps
    largest_us = max((end - start for start, end in busy.idle), default=0) / 1e3
    bound = ", an upper bound" if busy.upper_bound else ""
    if mode is Mode.NODE and busy.upper_bound:
        bound += ": launches overlap"
    return Axis(name, busy.percent, FLOORS[mode], f"percent{bound}; idle {idle_us:.1f} us a step, largest gap {largest_us:.1f} us")


def _gaps_inside(node: Mapping[str, Any]) -> list[str]:
    """Which launches follow one another with the device idle between them, and how much longer the tracer made the replay."""
    lines = []
    for key, gaps in node["inner_gaps"].items():
        lines.append(f"inside {key}, which the node records made {node['us_added_to_replay'][key]:+.1f} us long")
        lines += [
            f"{gap['us']:.1f} us {gap['before']} -> {gap['after']}: {gap['count']:.0f} of {gap['median_us']:.2f} us" for gap in gaps
        ]
    return lines


def _never(expects: Expects) -> AbstractContextManager[Any]:
    raise AssertionError("a GPU is profiled in processes of its own")
