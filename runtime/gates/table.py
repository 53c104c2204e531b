"""Gate reports as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.gates.verdict import Axis, GateReport, reproduce

MOST_FINDINGS = 5


def render_reports(reports: Sequence[GateReport]) -> str:
    """One block a gate: its axes with counts and verdicts, then the first findings, each with the command that shows it again."""
    return "\n\n".join("\n".join(_lines(report)) for report in reports)


def _lines(report: GateReport) -> Iterator[str]:
    figures = report.figures
    yield f"{report.name}  {report.title}: {report.verdict.value}"
    if "cases" in figures:
        yield f"    {figures['cases']} cases, {figures.get('steps', 0)} steps, {figures['seconds']} s"
    if "late" in figures:
        yield f"    outcomes collected late {figures['late']}, at once {figures['at_once']}"
    width = max((len(axis.name) for axis in report.axes), default=0)
    for axis in report.axes:
        yield f"    {axis.name:{width}}  {_numbers(axis)}{axis.detail:24}  {axis.verdict.value}"
    for name, (first, second) in figures.get("medians", {}).items():
        yield f"    {name}: {first:.4g} against {second:.4g}"
    for gap in (*figures.get("largest_gaps", ()), *figures.get("gaps_inside", ())):
        yield f"    {gap}"
    for finding in report.findings[:MOST_FINDINGS]:
        yield f"  ! {finding.axis}: {finding.message}"
        yield f"      {reproduce(report.name, finding)}"
    if len(report.findings) > MOST_FINDINGS:
        yield f"  ! and {len(report.findings) - MOST_FINDINGS} more (--json has them all)"


def _numbers(axis: Axis) -> str:
    """Value and floor of what was measured; an axis of checks says them in its detail."""
    if axis.floor == 1.0 or axis.floor is None:
        return ""
    value = "-" if axis.value is None else f"{axis.value:.4g}"
    return f"{value} (floor {axis.floor:.4g})  "
