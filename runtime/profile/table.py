"""A profile as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.profile.profile import SLOWED_TOO_MUCH, TRUE_WITHIN, explained

PASS_NAMES = {"events": "untraced", "graph": "graph", "node": "node"}


def render_profile(record: Mapping[str, Any]) -> str:
    """The record of a profile (runtime.profile.profile), most important first."""
    return "\n".join(_lines(record))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    facts, passes = record["facts"], record["passes"]
    yield f"{facts['model']['source']} ({facts['model']['dtype']}) on {facts['device']}"
    tokens = f"{record['tokens_per_step']:.2f} tokens a step"
    tpot = f", {record['tpot_ms']:.3f} ms a token of one request" if record["tpot_ms"] is not None else ""
    yield f"concurrency {facts['concurrency']}: step {record['step_ms']:.3f} ms, {tokens}{tpot}"
    yield ""
    if "overlap" in record:
        yield f"overlap: {record['overlap']}"
        yield ""
        yield "what a step does, in order of time"
        yield from _shares(record["shares"]["step"])
    else:
        yield from _passes(passes)
        yield from _gap_lines(passes)
        for key, shares in passes.get("node", {}).get("shares", {}).items():
            yield ""
            yield f"{key}: shares of the node pass, scaled to its span in the graph pass"
            yield from _shares(shares)
            yield from _inner_gap_lines(passes["node"], key)
    yield ""
    yield "host, ms a step: " + ", ".join(f"{name} {ms:.3f}" for name, ms in record["host_phases_ms"].items())
    yield from _host_calls(record.get("host_calls"))
    yield from _verdicts(record.get("checks", {}))


def _host_calls(calls: Mapping[str, Any] | None) -> Iterator[str]:
    if calls is None:
        return
    waits = ", ".join(f"{count} {wait}" for wait, count in calls["waits"].items()) or "none"
    verdict = "NOT AS IT SHOULD BE" if calls["findings"] else "no other call waits, and our counters say the same"
    yield f"waits of the host in {calls['steps']} steps, by records of every call into CUDA: {waits}: {verdict}"
    for finding in calls["findings"]:
        yield f"  {finding}"


def _passes(passes: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'pass':10}{'steps':>6}{'step ms':>11}{'busy %':>10}{'idle us/step':>14}{'largest us':>12}"
    for mode, values in passes.items():
        # A node pass slows the run it looks at: its step time is in brackets, and no step time.
        step = f"{values['step_ms']:.3f}" if "step_ms" in values else f"({values['slowed_step_ms']:.3f})"
        line = f"{PASS_NAMES[mode]:10}{values['steps']:>6}{step:>11}"
        if "busy_percent" in values:
            bound = "<=" if values["busy_is_upper_bound"] else ""
            busy = f"{bound}{values['busy_percent']:.2f}"
            line += f"{busy:>10}{values['idle']['us_per_step']:>14.1f}{values['idle']['largest_us']:>12.1f}"
        yield line


def _gap_lines(passes: Mapping[str, Any]) -> Iterator[str]:
    gaps = passes.get("graph", passes.get("events", {})).get("gaps")
    if not gaps:
        return
    yield ""
    ranges = ", ".join(f"{name}: {count}" for name, count in gaps["histogram"].items() if count)
    yield f"gaps between replays: {gaps['count']}, median {gaps['median_us']:.1f} us; by length in us: {ranges}"
    for gap in gaps["largest"]:
        yield (
            f"  {gap['us']:9.1f} us  {gap['before']} -> {gap['after']}: {explained(gap['cause'])}"
            f" (copies and others {gap['device_worked_us']:.1f} us of it)"
        )


def _shares(shares: list[dict[str, Any]]) -> Iterator[str]:
    for share in shares:
        line = f"  {share['family']:16}{share['percent']:7.2f} %{share['us']:11.1f} us{share['kernels']:8.1f} records"
        if "gigabytes_per_s" in share:
            line += f"  reads at {share['gigabytes_per_s']:.0f} GB/s"
        if "percent_of_copy" in share:
            line += f", {share['percent_of_copy']:.0f} % of a copy's rate"
        yield line


def _inner_gap_lines(node: Mapping[str, Any], key: str) -> Iterator[str]:
    gaps, overlapped = node["inner_gaps"][key], node["us_overlapped"].get(key)
    if overlapped is not None:
        yield f"  its kernels overlap by {overlapped:.1f} us: one that was started early counts as busy while it waits"
    if not gaps:
        return
    added = node["us_added_to_replay"][key]
    yield f"  between nodes, the most first; the node pass made the whole replay {added:+.1f} us long, which may be among them"
    for gap in gaps:
        yield f"    {gap['us']:9.1f} us  {gap['count']:6.1f} of {gap['median_us']:.2f} us  {gap['before']} -> {gap['after']}"


def _verdicts(checks: Mapping[str, Any]) -> Iterator[str]:
    if "graph_step_over_truth" in checks:
        verdict = "the graph pass is true" if checks["graph_pass_is_true"] else "NOT TRUE: its figures are those of a slowed run"
        off = 100 * (checks["graph_step_over_truth"] - 1)
        yield f"graph pass: step time {off:+.2f} % of the untraced pass, within {100 * TRUE_WITHIN:.0f} % is wanted: {verdict}"
    if "node_step_over_truth" in checks:
        note = f", above {SLOWED_TOO_MUCH}: doubt its proportions as well" if checks["node_pass_slowed_too_much"] else ""
        yield f"node pass: {checks['node_step_over_truth']:.2f} times as slow as the untraced pass{note}"
