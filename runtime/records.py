"""Records of measurements: YAML files that claim no more than their axes hold, and that know which sources they speak of.

A record is refused when its verdict is not the one that its values and floors hold, or when its workload was changed later. It is
edited when its content is no longer what was written, and stale when the code of a source file that it names has changed since: its
digest decides, with or without git.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from runtime.config import RunConfig
from runtime.config_file import read_yaml
from runtime.errors import ConfigError
from runtime.gates.verdict import Axis, GateReport, Verdict
from runtime.machine import ROOT, portable
from runtime.record_content import REMEDY, axes_of, check_types, checksum_of, digest_of
from runtime.shown_value import shown
from runtime.source_digest import sources_digest

RECORDS = ROOT / "docs" / "records"
STEP_SOURCES = (
    "kernels/*.py",
    "graphs/*.py",
    "runtime/admissions.py",
    "runtime/batch.py",
    "runtime/captured_graph.py",
    "runtime/context_backlog.py",
    "runtime/cuda_*.py",
    "runtime/detokenizer.py",
    "runtime/draft_lengths.py",
    "runtime/early_start.py",
    "runtime/engine.py",
    "runtime/generation.py",
    "runtime/landing.py",
    "runtime/mirror*.py",
    "runtime/models/*.py",
    "runtime/plan.py",
    "runtime/repeated_copies.py",
    "runtime/runner*.py",
    "runtime/scheduler*.py",
    "runtime/speculators/*.py",
    "runtime/staging.py",
    "runtime/step_*.py",
)
"""What decides how long a step takes."""


def sources_of(config: RunConfig) -> tuple[str, ...]:
    """What a measurement of a configuration speaks of: the code of a step, and the drafter where it is one of this repository."""
    drafter = config.speculator.draft_source if config.speculator.method == "dflash" else None
    folder = Path(drafter).resolve() if drafter else None
    if folder is None or not folder.is_dir() or not folder.is_relative_to(ROOT):
        return STEP_SOURCES
    inside = folder.relative_to(ROOT).as_posix()
    return (*STEP_SOURCES, f"{inside}/*.json", f"{inside}/*.safetensors")


@dataclass(frozen=True)
class Record:
    """One file.

    Attributes:
        name: what was measured, e.g. G4. verdict: the worst of the axes.
        workload: everything that the figures depend on beside machine and sources; fingerprint: its digest.
        facts: machine, versions, clocks, commit. sources: patterns below the repository's root; digest: of those files.
        edited: its file holds other values than were written into it (runtime/record_content.py).
    """

    name: str
    title: str
    date: str
    axes: tuple[Axis, ...]
    workload: Mapping[str, Any]
    facts: Mapping[str, Any]
    command: str
    sources: tuple[str, ...]
    digest: str
    edited: bool = False

    @classmethod
    def of(
        cls,
        report: GateReport,
        workload: Mapping[str, Any],
        facts: Mapping[str, Any],
        command: str,
        sources: Sequence[str] = STEP_SOURCES,
    ) -> Record:
        """The record of a report, dated now, of the sources as they are now. Paths of this machine are left out of it."""
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        command = " ".join(portable(word) for word in command.split(" "))
        return cls(
            report.name,
            report.title,
            date,
            report.axes,
            portable(workload),
            portable(facts),
            command,
            tuple(sources),
            sources_digest(sources, ROOT),
        )

    @property
    def verdict(self) -> Verdict:
        return GateReport(self.name, self.title, self.axes, (), {}).verdict

    @property
    def fingerprint(self) -> str:
        return digest_of(self.workload)[:16]

    @property
    def stale(self) -> bool:
        """Code that the record speaks of has changed, appeared or gone since it was written; its comments may change."""
        return sources_digest(self.sources, ROOT) != self.digest

    def write(self, folder: Path) -> Path:
        """Into a new file of its own, named by date, record and workload. Raises ConfigError: it cannot be written."""
        model = str(self.workload.get("model", "")).rpartition("/")[2].replace(":", "-")
        stem = "-".join(filter(None, (self.date[:10], self.name.lower(), model)))
        path, number = folder / f"{stem}.yaml", 1
        values = self._as_dict()
        values["checksum"] = checksum_of(values)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while path.exists():
                number += 1
                path = folder / f"{stem}-{number}.yaml"
            path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"record = {path}: cannot be written: {error.strerror}; name a folder that can") from error
        return path

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises ConfigError: keys are missing, or the file claims what it does not hold."""
        try:
            values = read_yaml(path, "record")
        except ConfigError as error:
            raise ConfigError(f"{error}; {REMEDY}") from error
        check_types(path, values)
        axes = axes_of(path, values["axes"])
        record = cls(
            values["record"],
            values["title"],
            str(values["date"]),
            axes,
            values["workload"],
            values["facts"],
            values["command"],
            tuple(values["sources"]),
            values["digest"],
            edited=values["checksum"] != checksum_of(values),
        )
        if values["verdict"] != record.verdict.value:
            held = f"claims {shown(values['verdict'], str)}, and its axes hold {record.verdict.value}"
            raise ConfigError(f"record = {path}: {held}; {REMEDY}")
        if values["fingerprint"] != record.fingerprint:
            raise ConfigError(
                f"record = {path}: its workload was changed: fingerprint {record.fingerprint}, not "
                f"{shown(values['fingerprint'], str)}; {REMEDY}"
            )
        return record

    def _as_dict(self) -> dict[str, Any]:
        return {
            "record": self.name,
            "title": self.title,
            "date": self.date,
            "verdict": self.verdict.value,
            "axes": [axis.as_dict() for axis in self.axes],
            "workload": dict(self.workload),
            "fingerprint": self.fingerprint,
            "facts": dict(self.facts),
            "command": self.command,
            "sources": list(self.sources),
            "digest": self.digest,
        }


def read_records(folder: Path) -> tuple[list[tuple[Path, Record]], list[tuple[Path, str]]]:
    """Every record below `folder`, by name of file, and beside them the files that are none, each with why.

    Raises ConfigError: no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"records = {folder}: no such folder; name one that holds records, or none for docs/records")
    records: list[tuple[Path, Record]] = []
    refused: list[tuple[Path, str]] = []
    for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem):
        try:
            records.append((path, Record.read(path)))
        except ConfigError as error:
            refused.append((path, str(error)))
    return records, refused


def _shown(axis: Axis, *, of_arms: bool) -> tuple[str, str]:
    """Value and floor. Of arms they are log ratios: shown is how many times as good the first is, and what equal arms differ by."""
    value, floor = axis.value, axis.floor
    if of_arms:
        return "-" if value is None else f"{math.exp(value):.3f}x", "-" if floor is None else f"{100 * math.expm1(floor):.2f} %"
    return "-" if value is None else f"{value:.4g}", "-" if floor is None else f"{floor:.4g}"


def render_records(records: Sequence[tuple[Path, Record]]) -> str:
    """The table: a line an axis, its record's name and verdict in front of the first."""
    if not records:
        return "no records"
    lines = []
    for path, record in records:
        doubts = "   EDITED: not what was measured" if record.edited else ""
        doubts += "   STALE: sources have changed since" if record.stale else ""
        lines.append(f"{record.date[:10]}  {record.name}  {record.verdict.value}{doubts}   {record.title}")
        device = str(record.facts.get("device", "-")).split(",")[0]
        lines.append(f"    {record.workload.get('model', '-')} on {device}, {path.name}")
        width = max(len(axis.name) for axis in record.axes)
        for axis in record.axes:
            value, floor = _shown(axis, of_arms="arms" in record.workload)
            lines.append(f"    {axis.name:{width}}  {value:>9}  floor {floor:>7}  {axis.verdict.value}: {axis.detail}")
    return "\n".join(lines)
