"""Gate reports as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.gates.verdict import GateReport, reproduce

MOST_FINDINGS = 5


def render_reports(reports: Sequence[GateReport]) -> str:
    """One block a gate: its axes with counts and verdicts, then the first findings, each with the command that shows it again."""
    return "\n\n".join("\n".join(_lines(report)) for report in reports)


def _lines(report: GateReport) -> Iterator[str]:
    figures = report.figures
    yield f"{report.name}  {report.title}: {report.verdict.value}"
    yield f"    {figures['cases']} cases, {figures.get('steps', 0)} steps, {figures['seconds']} s"
    if "late" in figures:
        yield f"    outcomes collected late {figures['late']}, at once {figures['at_once']}"
    width = max((len(axis.name) for axis in report.axes), default=0)
    for axis in report.axes:
        yield f"    {axis.name:{width}}  {axis.detail:24}  {axis.verdict.value}"
    for finding in report.findings[:MOST_FINDINGS]:
        yield f"  ! {finding.axis}: {finding.message}"
        yield f"      {reproduce(report.name, finding)}"
    if len(report.findings) > MOST_FINDINGS:
        yield f"  ! and {len(report.findings) - MOST_FINDINGS} more (--json has them all)"
