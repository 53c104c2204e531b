"""Comparing outputs with expectations: integers exactly, floats to the digits that the vector gives, {index: value} sparsely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np


def difference(actual: Any, expected: Any, path: str) -> str | None:
    """None where `actual` is as expected, else one line naming the first place that is not.

    null inside a list is not compared. {index: value} compares those indices of a list only.
    """
    if isinstance(actual, np.ndarray):
        actual = actual.tolist()
    if isinstance(expected, Mapping):
        for key, value in expected.items():
            try:
                entry = actual[int(key)] if isinstance(actual, Sequence) else actual[key]
            except (IndexError, KeyError, TypeError, ValueError):
                return f"{path}: has no entry {key}"
            found = difference(entry, value, f"{path}[{key}]")
            if found:
                return found
        return None
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{path} = {actual}, expected {expected}"
        for i, (entry, value) in enumerate(zip(actual, expected, strict=True)):
            found = None if value is None else difference(entry, value, f"{path}[{i}]")
            if found:
                return found
        return None
    same = actual == expected or (expected is None and actual == [])
    if isinstance(expected, float) and isinstance(actual, int | float):
        same = abs(actual - expected) <= tolerance(expected)
    return None if same else f"{path} = {actual}, expected {expected}"


def tolerance(expected: float) -> float:
    """Half a unit in the last digit given, where three digits or more are given behind the point; 1e-6 otherwise."""
    digits = -int(Decimal(repr(expected)).as_tuple().exponent)
    return max(0.51 * 10.0**-digits, 1e-9) if 3 <= digits <= 9 else 1e-6
