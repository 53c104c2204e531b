"""Typed reads from an untrusted mapping (config.json, GGUF metadata) that collect every problem instead of the first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runtime.shown_value import shown

_MISSING = object()


class Fields:
    """A mapping whose reads never raise: a bad field is noted in `problems` and a harmless stand-in is returned.

    The caller reads everything, then raises one error that lists `problems`. A null value counts as missing.
    """

    def __init__(self, values: Mapping[str, object], problems: list[str] | None = None) -> None:
        self.values = values
        self.problems: list[str] = [] if problems is None else problems

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, maximum: int = 2**31 - 1) -> int:
        """An integer in [1, maximum]; the default maximum is that of the int32 which kernels count with."""
        value = self._get(key, default)
        if value is _MISSING:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            self.problems.append(f"{key} = {shown(value)}: must be an integer from 1 to {maximum}")
            return 1
        return value

    def number(self, key: str, default: float | None = None, minimum: float = 0.0, exclusive: bool = True) -> float:
        """A finite number above `minimum` (or equal to it when not `exclusive`)."""
        value = self._get(key, default)
        if value is _MISSING:
            return minimum + 1.0
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < minimum or (exclusive and value == minimum):  # type: ignore[operator]
            sign = ">" if exclusive else ">="
            self.problems.append(f"{key} = {shown(value)}: must be a number {sign} {minimum:g}")
            return minimum + 1.0
        return float(value)  # type: ignore[arg-type]

    def boolean(self, key: str, default: bool) -> bool:
        """true or false; the default where the key is missing or null."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} = {shown(value)}: must be true or false")
            return default
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text, "" after a problem; without a default the key must be there."""
        value = self._get(key, default)
        if value is _MISSING:
            return ""
        if not isinstance(value, str):
            self.problems.append(f"{key} = {shown(value)}: must be a string")
            return ""
        return value

    def ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them; none where the key is missing."""
        value = self.values.get(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab_size for item in listed):
            return tuple(listed)
        self.problems.append(f"{key} = {shown(value)}: token ids must lie in [0, vocab_size = {vocab_size})")
        return ()

    def refuse(self, key: str, allowed: tuple[object, ...], why: str) -> None:
        """Note a problem where `key` is present with a value outside `allowed`."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            self.problems.append(f"{key} = {shown(value)}: {why}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            self.problems.append(f"{key} is missing")
            return _MISSING
        return default
