"""pytest plugin of `make gpu` (-p tests.gpu_report): results by file and every figure that a test recorded, as a short table last,
or as JSON in the file that DRAFTGRAPH_GPU_REPORT names."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

OUTCOMES = ("passed", "failed", "error", "skipped")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report = collected(terminalreporter.stats)
    file = os.environ.get("DRAFTGRAPH_GPU_REPORT")
    if file is not None:
        Path(file).write_text(json.dumps(report), encoding="utf-8")
        return
    terminalreporter.section("GPU")
    for line in table(report):
        terminalreporter.write_line(line)


def collected(stats: dict[str, Any]) -> dict[str, Any]:
    """pytest's statistics as {"files": {name: {outcome: count, "seconds": s}}, "figures": {...}, "failures": [node ids],
    "skips": {reason: count}}."""
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: defaultdict[str, float] = defaultdict(float)
    figures: dict[str, Any] = {}
    failures, skips = [], Counter[str]()
    for outcome in OUTCOMES:
        for report in stats.get(outcome, []):
            name = report.nodeid.partition("::")[0]
            files[name][outcome] += 1
            seconds[name] += getattr(report, "duration", 0.0)
            figures.update(getattr(report, "user_properties", []))
            if outcome in ("failed", "error"):
                failures.append(report.nodeid)
            if outcome == "skipped":
                skips[reason_of(report)] += 1
    counts: dict[str, Any] = {name: {**count, "seconds": round(seconds[name], 1)} for name, count in sorted(files.items())}
    return {"files": counts, "figures": figures, "failures": failures, "skips": dict(skips)}


def reason_of(report: Any) -> str:
    """Why a test was skipped, as it says; an expected failure says it elsewhere."""
    where = report.longrepr
    text = str(where[2]) if isinstance(where, tuple) else getattr(report, "wasxfail", "") or "no reason given"
    return text.removeprefix("Skipped: ")


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Reports of several processes as one; no file is in two of them."""
    whole: dict[str, Any] = {"files": {}, "figures": {}, "failures": [], "skips": Counter()}
    for report in reports:
        whole["files"] |= report["files"]
        whole["figures"] |= report["figures"]
        whole["failures"] += report["failures"]
        whole["skips"].update(report["skips"])
    return whole


def totals(report: dict[str, Any]) -> str:
    """Passed, failed, skipped, and why skipped, the most frequent reason first."""
    passed = sum(count.get("passed", 0) for count in report["files"].values())
    skips = Counter(report["skips"])
    reasons = "; ".join(f"{count} {reason}" for reason, count in skips.most_common())
    return f"{passed} passed, {len(report['failures'])} failed, {skips.total()} skipped" + (f" ({reasons})" if reasons else "")


def table(report: dict[str, Any]) -> list[str]:
    lines = []
    for name, count in sorted(report["files"].items()):
        results = ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES if outcome in count)
        lines.append(f"{name:<40} {results:<36} {count['seconds']:7.1f} s")
    lines += [f"{figure:<76} {value}" for figure, value in report["figures"].items()]
    lines += [f"FAILED {node}" for node in report["failures"]]
    if not any(count.get("passed") for count in report["files"].values()):
        lines.append("nothing ran: is there a GPU, and is CuPy installed?")
    return lines
