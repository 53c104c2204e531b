"""Verdicts of gates. What was not measured is not a pass, and what has no declared floor is not one either."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verdict(str, Enum):
    """From best to worst. Only SATISFIED is a pass."""

    SATISFIED = "SATISFIED"
    RECORDED = "RECORDED, no floor declared"
    UNDER_FLOOR = "UNDER THE FLOOR"  # of a comparison: equal arms differ by as much
    NOT_MEASURED = "NOT MEASURED"
    OPEN_GAP = "OPEN GAP"
    TAUTOLOGICAL = "TAUTOLOGICAL"  # of a comparison: both arms took the same path

    @classmethod
    def of(cls, value: float | None, floor: float | None) -> Verdict:
        """value None: nobody measured it. floor None: nobody said what is enough."""
        if value is None:
            return cls.NOT_MEASURED
        if floor is None:
            return cls.RECORDED
        return cls.SATISFIED if value >= floor else cls.OPEN_GAP


@dataclass(frozen=True)
class Finding:
    """One check that failed: of which axis, in which case, and how to see it again."""

    axis: str
    message: str
    case: str


@dataclass
class Ledger:
    """Checks made and failed, by axis. An axis that was named and never checked is NOT MEASURED."""

    checked: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def check(self, axis: str, holds: bool, case: object, message: str) -> None:
        """Count one check; `message` is what to say if it failed."""
        self.checked[axis] += 1
        if not holds:
            self.findings.append(Finding(axis, message, str(case)))

    def add(self, other: Ledger) -> None:
        """What was checked elsewhere counts as if it had been checked here."""
        self.checked += other.checked
        self.findings += other.findings


@dataclass(frozen=True)
class Axis:
    """One thing that a gate demands.

    Attributes:
        floor: in the unit of `value`; None = not declared.
        failed: a verdict that says more than the two numbers, e.g. of a comparison. Never a pass.

    Raises ValueError: `failed` would be one.
    """

    name: str
    value: float | None
    floor: float | None
    detail: str
    failed: Verdict | None = None

    def __post_init__(self) -> None:
        if self.failed is Verdict.SATISFIED:
            raise ValueError(f"axis {self.name}: SATISFIED follows from value and floor, and is never given")

    @property
    def verdict(self) -> Verdict:
        return self.failed or Verdict.of(self.value, self.floor)

    def as_dict(self) -> dict[str, Any]:
        values = {"name": self.name, "value": self.value, "floor": self.floor, "detail": self.detail}
        return values | {"verdict": self.verdict.value}

    @classmethod
    def of_checks(cls, name: str, ledger: Ledger) -> Axis:
        """Share of checks that held; every one of them must."""
        checked = ledger.checked[name]
        failed = sum(finding.axis == name for finding in ledger.findings)
        return cls(name, (checked - failed) / checked if checked else None, 1.0, f"{checked - failed} of {checked} hold")


@dataclass(frozen=True)
class GateReport:
    """What a gate found. Its verdict is the worst of its axes."""

    name: str
    title: str
    axes: tuple[Axis, ...]
    findings: tuple[Finding, ...]
    figures: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        order = list(Verdict)
        return max((axis.verdict for axis in self.axes), key=order.index, default=Verdict.NOT_MEASURED)

    def as_dict(self) -> dict[str, Any]:
        return {
            "gate": self.name,
            "title": self.title,
            "verdict": self.verdict.value,
            "axes": [axis.as_dict() for axis in self.axes],
            "findings": [vars(finding) | {"reproduce": reproduce(self.name, finding)} for finding in self.findings],
            "figures": self.figures,
        }


def reproduce(gate: str, finding: Finding) -> str:
    """The command that runs the failing case alone."""
    return f'draftgraph gates {gate} --case "{finding.case}"'
