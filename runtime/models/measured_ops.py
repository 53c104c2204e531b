"""What was measured of the forms of a step's products, and how it is remembered from start to start."""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.models import choose_algorithms

logger = logging.getLogger(__name__)

PRODUCTS = ["down", "gate_up", "out", "qkv"]
"""The products of a layer; each may be laid out in more than one way, or be the library's (graphs/fused_ops.py)."""

_MOST_LAYOUTS = 64


@dataclass(frozen=True)
class Measured:
    """Microseconds of all measured layers, and of the head with its argmax, by set, in the order of `rows`; and
    which of its forms (`forms_of`) each product was fastest in, and which algorithm the library's product is fastest by."""

    rows: list[int]
    fused_layers: list[float]
    library_layers: list[float]
    fused_head: list[float]
    library_head: list[float]
    layouts: list[dict[str, int]]
    algorithms: list[dict[str, str]]

    def fused_best(self) -> list[tuple[bool, bool]]:
        """For each row count: is the fused set faster in the layers, and in the head?"""
        layers = [ours < other for ours, other in zip(self.fused_layers, self.library_layers, strict=True)]
        heads = [ours < other for ours, other in zip(self.fused_head, self.library_head, strict=True)]
        return list(zip(layers, heads, strict=True))

    @classmethod
    def of(cls, values: Any) -> Measured | None:
        """From JSON; None where it is anything but what `asdict` wrote."""
        names = list(cls.__dataclass_fields__)
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            return None
        columns = list(values.values())
        if not all(isinstance(column, list) and len(column) == len(values["rows"]) > 0 for column in columns):
            return None
        numbers = [number for name in names[:-2] for number in values[name]]
        if not all(_are_algorithms(of_rows) for of_rows in values["algorithms"]):
            return None
        places = [place for layouts in values["layouts"] if isinstance(layouts, dict) for place in layouts.values()]
        if len([layouts for layouts in values["layouts"] if isinstance(layouts, dict) and sorted(layouts) == PRODUCTS]) != len(
            columns[0]
        ):
            return None
        if not all(isinstance(place, int) and not isinstance(place, bool) and 0 <= place < _MOST_LAYOUTS for place in places):
            return None
        if not all(isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < 1e9 for number in numbers):
            return None
        return cls(**values)


def _are_algorithms(values: Any) -> bool:
    """Is it what `measured_algorithms` returns?"""
    if not isinstance(values, dict) or sorted(values) != choose_algorithms.PRODUCTS:
        return False
    return all(isinstance(value, str) and re.fullmatch("([0-9a-f]{2})*", value) for value in values.values())


def read_measured(path: Path, key: dict[str, Any]) -> Measured | None:
    """What was remembered under this key; None, with a log line, where the file is not what `write_measured` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("choice of operations %s cannot be read (%s): measured anew", path, error)
        return None
    measured = Measured.of(content.get("measured")) if isinstance(content, dict) and content.get("key") == key else None
    if measured is None or measured.rows != key["rows"]:
        logger.warning("choice of operations %s is not of this model, device and version: measured anew", path)
        return None
    return measured


def write_measured(path: Path, key: dict[str, Any], measured: Measured) -> None:
    """Remember, whole or not at all; a folder that cannot be written costs the next start the measurement."""
    own = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({"key": key, "measured": asdict(measured)}, indent=1), encoding="utf-8")
        own.replace(path)
    except OSError as error:
        logger.warning("choice of operations %s cannot be kept (%s): the next start measures again", path, error)
