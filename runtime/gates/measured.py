"""What the gates that need a GPU share: a report with what its record needs beside it, and the report of a machine without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.gates.verdict import Axis, GateReport


@dataclass(frozen=True)
class Measured:
    """workload: all that the figures depend on beside machine and sources. facts: of the machine."""

    report: GateReport
    workload: Mapping[str, Any]
    facts: Mapping[str, Any]


def not_measured(gate: str, title: str, axes: Sequence[str], reason: str) -> GateReport:
    """Every axis NOT MEASURED, which is no pass."""
    return GateReport(gate, title, tuple(Axis(axis, None, None, reason) for axis in axes), (), {})
