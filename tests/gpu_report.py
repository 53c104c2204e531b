"""pytest plugin of `make gpu` (-p tests.gpu_report): a short table last, of results by file and of every figure a test recorded."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    figures: dict[str, object] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("::")[0]
            counts[name][outcome] += 1
            seconds[name] += getattr(report, "duration", 0.0)
            figures.update(getattr(report, "user_properties", []))
    terminalreporter.section("GPU")
    for name, count in sorted(counts.items()):
        results = ", ".join(f"{n} {outcome}" for outcome, n in count.items())
        terminalreporter.write_line(f"{name:<40} {results:<36} {seconds[name]:7.1f} s")
    for figure, value in figures.items():
        terminalreporter.write_line(f"{figure:<76} {value}")
    if not any(count["passed"] for count in counts.values()):
        terminalreporter.write_line("nothing ran: is there a GPU, and is CuPy installed?")
