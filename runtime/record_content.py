"""What stands in the file of a record: its keys and their types, and the checksum over all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.errors import ConfigError
from runtime.gates.verdict import Axis, Verdict
from runtime.shown_value import shown

REMEDY = "measure it again with `draftgraph gates --record`"

MAX_FIGURE = 1e300
"""Of an axis: no measurement is infinite."""

_KEYS = (
    *("record", "title", "date", "verdict", "axes", "workload", "fingerprint", "facts", "command", "sources", "digest"),
    "checksum",
)  # fmt: skip
_KINDS: tuple[tuple[str, type, str], ...] = (
    *((key, str, "a text") for key in ("record", "title", "command", "digest", "fingerprint", "checksum")),
    *((key, Mapping, "a mapping") for key in ("workload", "facts")),
    *((key, list, "a list") for key in ("axes", "sources")),
)


def digest_of(values: Any) -> str:
    """SHA-256 over values as YAML reads them back, whatever the order of keys in a mapping."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def checksum_of(values: Mapping[str, Any]) -> str:
    """Of everything that a record's file holds, but for the checksum itself. It guards against accidents, a floor lowered while
    looking for something else; whoever means to deceive can compute it too."""
    return digest_of({key: value for key, value in values.items() if key != "checksum"})


def check_types(path: Path, values: Mapping[str, Any]) -> None:
    """Raises ConfigError: a key is missing or has a value of another type, sources outside the repository, a date that is none, no
    checksum."""
    missing = [key for key in _KEYS if key not in values]
    if missing:
        raise ConfigError(f"record = {path}: {', '.join(missing)}: missing; {REMEDY}")
    for key, kind, words in _KINDS:
        if not isinstance(values[key], kind):
            raise ConfigError(f"record = {path}: {key} = {shown(values[key])}: must be {words}; {REMEDY}")
    if strange := [source for source in values["sources"] if not isinstance(source, str)]:
        raise ConfigError(f"record = {path}: sources: {shown(strange[0])}: must be a text; {REMEDY}")
    if outside := [source for source in values["sources"] or [""] if not _is_inside(source)]:
        wanted = "must be a pattern below the repository, e.g. kernels/*.py"
        raise ConfigError(f"record = {path}: sources: {shown(outside[0])}: {wanted}; {REMEDY}")
    try:
        datetime.fromisoformat(str(values["date"]))
    except ValueError as error:
        wanted = f"must be a date, e.g. 2026-11-29; {REMEDY}"
        raise ConfigError(f"record = {path}: date = {shown(values['date'])}: {wanted}") from error
    try:
        digest_of(values)
    except (TypeError, ValueError, RecursionError) as error:  # keys that are no texts, a mapping that holds itself
        raise ConfigError(f"record = {path}: what it holds has no checksum ({error}); {REMEDY}") from error


def axes_of(path: Path, listed: Sequence[Mapping[str, Any]]) -> tuple[Axis, ...]:
    """Raises ConfigError: an axis lacks a key, or has a figure that nobody can have measured."""
    try:
        return tuple(_axis(axis) for axis in listed)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"record = {path}: axes: {error}; each has name, value, floor, verdict and detail; {REMEDY}") from error


def _axis(values: Mapping[str, Any]) -> Axis:
    """An axis of a file. A comparison's own verdict stands as it is, for none of them is a pass."""
    claimed = Verdict(values["verdict"])
    own = claimed if claimed in (Verdict.UNDER_FLOOR, Verdict.TAUTOLOGICAL, Verdict.NOT_MEASURED, Verdict.OPEN_GAP) else None
    for key in ("value", "floor"):
        number = isinstance(values[key], int | float) and not isinstance(values[key], bool)
        # Compared with a magnitude and not by isfinite, which an integer beyond the floats breaks. A NaN is below none.
        if values[key] is not None and not (number and abs(values[key]) < MAX_FIGURE):
            raise TypeError(f"{key} = {values[key]!r:.40}: must be a number below {MAX_FIGURE:g} or null")
    return Axis(str(values["name"]), values["value"], values["floor"], str(values["detail"]), own)


def _is_inside(source: str) -> bool:
    """Does the pattern look below the repository's root, and nowhere else?"""
    parts = PurePosixPath(source).parts
    return bool(parts) and not PurePosixPath(source).is_absolute() and ".." not in parts
