"""Which side of the host/device line is true for a value, and integers that remember it.

A HostUpperBound sizes things (blocks to reserve, a bucket to pick). It never becomes an index or a length on the device:
after a rejected draft the exact value is smaller, and a row computed from the bound reads tokens that do not exist.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import SupportsIndex, TypeAlias

from runtime.mirror_errors import StaleValueError


class Truth(str, Enum):
    """Who may write a mirrored buffer.

    There is no member for a bound: a HostUpperBound has no copy on the device, so no buffer can hold one.
    """

    DEVICE_EXACT = "device exact"  # only kernels write it; a host copy is a download of the past
    HOST_EXACT = "host exact"  # only the host writes it; the device copy is what was uploaded, or applied from staged diffs
    EITHER = "either side"  # seeded by the host, then written by kernels; never both at once


@dataclass(frozen=True)
class HostExact:
    """An integer that the host knows exactly although steps are in flight: a prompt length, a slot, prefill progress."""

    value: int

    def __index__(self) -> int:
        return self.value

    def __add__(self, other: HostExact | int) -> HostExact:
        return HostExact(self.value + operator.index(other)) if isinstance(other, HostExact | int) else NotImplemented

    def __sub__(self, other: HostValue | int) -> HostExact:
        if isinstance(other, HostUpperBound):
            raise StaleValueError(f"{self} - {other}: the difference is no upper bound of anything; subtract an exact value")
        return HostExact(self.value - operator.index(other)) if isinstance(other, HostExact | int) else NotImplemented

    __radd__ = __add__


@dataclass(frozen=True)
class HostUpperBound:
    """The exact value plus what the steps in flight may still add. `limit` is for sizing; there is no __index__."""

    limit: int

    def __add__(self, other: HostValue | int) -> HostUpperBound:
        if isinstance(other, HostUpperBound):
            return HostUpperBound(self.limit + other.limit)
        return HostUpperBound(self.limit + operator.index(other)) if isinstance(other, HostExact | int) else NotImplemented

    def __sub__(self, other: HostValue | int) -> HostUpperBound:
        if isinstance(other, HostUpperBound):
            raise StaleValueError(f"{self} - {other}: the difference is no upper bound of anything; subtract an exact value")
        return HostUpperBound(self.limit - operator.index(other)) if isinstance(other, HostExact | int) else NotImplemented

    def __rsub__(self, other: int) -> HostUpperBound:
        raise StaleValueError(f"{other} - {self}: the difference is no upper bound of anything; subtract an exact value")

    __radd__ = __add__

    def at_most(self, exact: HostExact | int) -> HostUpperBound:
        """The smaller of the two: still a bound, whichever wins (a length never exceeds max_total_len)."""
        return HostUpperBound(min(self.limit, operator.index(exact)))


HostValue: TypeAlias = "HostExact | HostUpperBound"


def require_exact(value: SupportsIndex | HostUpperBound, name: str) -> int:
    """The integer, where it may become an index or a length. `name` is said in the error.

    Raises StaleValueError for a HostUpperBound.
    """
    if isinstance(value, HostUpperBound):
        raise StaleValueError(
            f"{name} = {value}: an upper bound cannot be an index or a length, the device may have rejected drafts; "
            f"compute it on the device, or collect the step's outcome first"
        )
    return operator.index(value)
