"""Profile: the passes over one workload put together, each asked only for what it can answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.phase_clock import Phase
from runtime.profile.analysis import DEVICE, Analysis, Gap, histogram
from runtime.profile.families import Share, host_shares, shares
from runtime.profile.host_calls import HostCalls
from runtime.profile.inner_gaps import InnerGap, inner_gaps
from runtime.profile.trace import Mode

MOST_GAPS = 5
MOST_PAIRS = 6
TRUE_WITHIN = 0.03
"""How far the step time of the graph pass may be from the untraced one."""
SLOWED_TOO_MUCH = 1.5
"""A node pass slower than this many times the untraced one gives proportions that are doubtful as well."""


@dataclass(frozen=True)
class Profile:
    """The passes that ran, by mode; and what the host waited for, by a pass that times nothing."""

    passes: Mapping[Mode, Analysis]
    host_calls: HostCalls | None = None

    @property
    def truth(self) -> Analysis:
        """The pass that says how long a step takes."""
        return self.passes[Mode.EVENTS] if Mode.EVENTS in self.passes else self.passes[Mode.HOST]

    @property
    def shown(self) -> Analysis:
        """The pass whose timeline is shown: the one with graph records where there is one."""
        return self.passes.get(Mode.GRAPH) or self.truth

    def as_dict(self) -> dict[str, Any]:
        """The record: times in milliseconds or microseconds as the keys say, absent what no pass could tell."""
        truth = self.truth
        steps, tokens = truth.trace.steps, truth.trace.tokens
        concurrency = truth.trace.facts["concurrency"]
        step_ms = truth.step_ns() / 1e6
        record: dict[str, Any] = {
            "facts": dict(truth.trace.facts),
            "step_ms": step_ms,
            "tokens_per_step": tokens / steps,
            "tpot_ms": step_ms * concurrency * steps / tokens if tokens else None,
            "host_phases_ms": {phase.label: time / 1e6 for phase, time in truth.phase_ns().items()},
            "replays_per_step": {key: count / steps for key, count in truth.replays_by_key().items()},
            "passes": {mode.value: self._pass(analysis) for mode, analysis in self.passes.items()},
        }
        if Mode.HOST in self.passes:
            record["overlap"] = "not measured: host and device are one processor here, work runs when the host waits for it"
            record["shares"] = {"step": [_share(share) for share in host_shares(truth)]}
        if (calls := self.host_calls) is not None:
            record["host_calls"] = {"steps": calls.steps, "waits": dict(calls.waits()), "findings": calls.findings()}
        return record | self._checks()

    def _pass(self, analysis: Analysis) -> dict[str, Any]:
        mode = analysis.trace.mode
        values: dict[str, Any] = {"steps": analysis.trace.steps, "replays": len(analysis.trace.replays)}
        if mode is Mode.NODE:
            values["slowed_step_ms"] = analysis.slowed_step_ns() / 1e6
        else:
            values["step_ms"] = analysis.step_ns() / 1e6
        if mode is not Mode.HOST:
            values["replay_ms"] = {key: analysis.span_ns(key) / 1e6 for key in analysis.replays_by_key()}
        if mode in (Mode.GRAPH, Mode.NODE):
            values |= _busy(analysis)
        if mode in (Mode.GRAPH, Mode.EVENTS):
            values["gaps"] = _gaps(analysis.gaps())
        if mode is Mode.NODE:
            values["shares"] = {key: [self._with_rate(share) for share in self.shares(key)] for key in analysis.replays_by_key()}
            values["inner_gaps"] = {key: [_inner_gap(gap) for gap in self.inner_gaps(key)] for key in analysis.replays_by_key()}
            keys = [key for key in analysis.replays_by_key() if analysis.overlaps(key)]
            values["us_overlapped"] = {key: analysis.overlapped_ns(key) / 1e3 for key in keys}
            values["us_added_to_replay"] = {
                key: (analysis.span_ns(key) - self.passes[Mode.GRAPH].span_ns(key)) / 1e3 for key in analysis.replays_by_key()
            }
        return values

    def shares(self, key: str) -> list[Share]:
        """Of one replay of `key`: proportions of the node pass, scaled to its span in the graph pass."""
        return shares(self.passes[Mode.NODE], key, self.passes[Mode.GRAPH].span_ns(key))

    def inner_gaps(self, key: str) -> list[InnerGap]:
        """Of one replay of `key`, the pairs of operations that cost most first, scaled as `shares` are."""
        return inner_gaps(self.passes[Mode.NODE], key, self.passes[Mode.GRAPH].span_ns(key))[:MOST_PAIRS]

    def _with_rate(self, share: Share) -> dict[str, Any]:
        copy = self.truth.trace.facts.get("copy_bytes_per_s")
        values = _share(share)
        if share.gigabytes_per_s is not None and copy:
            values["percent_of_copy"] = 100 * share.gigabytes_per_s / (copy / 1e9)
        return values

    def _checks(self) -> dict[str, Any]:
        checks: dict[str, Any] = {}
        truth = self.truth.step_ns()
        if Mode.GRAPH in self.passes:
            ratio = self.passes[Mode.GRAPH].step_ns() / truth
            checks["graph_step_over_truth"] = ratio
            checks["graph_pass_is_true"] = abs(ratio - 1.0) <= TRUE_WITHIN
        if Mode.NODE in self.passes:
            slowed = self.passes[Mode.NODE].slowed_step_ns() / truth
            checks["node_step_over_truth"] = slowed
            checks["node_pass_slowed_too_much"] = slowed > SLOWED_TOO_MUCH
        return {"checks": checks} if checks else {}


def _busy(analysis: Analysis) -> dict[str, Any]:
    busy = analysis.busy()
    idle = [end - start for start, end in busy.idle]
    return {
        "busy_percent": busy.percent,
        "busy_is_upper_bound": busy.upper_bound,
        "idle": {
            "count": len(idle),
            "us_per_step": sum(idle) / 1e3 / analysis.trace.steps,
            "largest_us": max(idle, default=0) / 1e3,
            "at_least_100_us": sum(gap >= 100_000 for gap in idle),
            "at_least_1_ms": sum(gap >= 1_000_000 for gap in idle),
        },
    }


def _gaps(gaps: list[Gap]) -> dict[str, Any]:
    largest = sorted(gaps, key=lambda gap: -gap.length_ns)[:MOST_GAPS]
    lengths = sorted(gap.length_ns / 1e3 for gap in gaps)
    causes: dict[str, float] = {}
    for gap in gaps:
        causes[gap.cause] = causes.get(gap.cause, 0.0) + gap.length_ns / 1e3
    return {
        "count": len(gaps),
        "median_us": lengths[len(lengths) // 2],
        "histogram": dict(histogram(gaps)),
        "us_by_cause": dict(sorted(causes.items(), key=lambda item: -item[1])),
        "largest": [
            {
                "us": gap.length_ns / 1e3,
                "before": gap.before,
                "after": gap.after,
                "cause": gap.cause,
                "device_worked_us": gap.working_ns / 1e3,
                "queued_us_before": gap.queued_ns / 1e3,
            }
            for gap in largest
        ],
    }


def _share(share: Share) -> dict[str, Any]:
    values: dict[str, Any] = {
        "family": share.family,
        "percent": 100 * share.share,
        "us": share.time_ns / 1e3,
        "kernels": share.kernels,
    }
    if share.gigabytes_per_s is not None:
        values |= {"bytes_read": share.nbytes, "gigabytes_per_s": share.gigabytes_per_s}
    return values


def _inner_gap(gap: InnerGap) -> dict[str, Any]:
    return {
        "before": gap.before,
        "after": gap.after,
        "count": gap.count,
        "percent": 100 * gap.share,
        "us": gap.time_ns / 1e3,
        "median_us": gap.median_ns / 1e3,
    }


def explained(cause: str) -> str:
    """A cause of a gap in words."""
    if cause == DEVICE:
        return "queued in time: the device's own launch latency and copies"
    if cause == Phase.OUTSIDE.label:
        return "the host was outside Engine.step"
    return f"the host was in {cause}"
