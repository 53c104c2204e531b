"""Intervals of time: their union, what it leaves out, and how long that is. Integers, half open, any order."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of `window` that at least one interval covers, in order and apart from each other."""
    low, high = window
    merged: list[Interval] = []
    for start, end in sorted((max(start, low), min(end, high)) for start, end in intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def complement(covered: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of `window` that `covered`, as `union` returns it, leaves out."""
    gaps, at = [], window[0]
    for start, end in covered:
        if start > at:
            gaps.append((at, start))
        at = end
    if at < window[1]:
        gaps.append((at, window[1]))
    return gaps


def total(intervals: Iterable[Interval]) -> int:
    """Length of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def overlap(one: Interval, other: Interval) -> int:
    """Length of what both cover."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def exclusive(intervals: Iterable[Interval]) -> list[int]:
    """Length of each interval without what earlier ones cover, in order of their starts. They sum up to the union."""
    lengths, covered = [], None
    for start, end in sorted(intervals):
        at = start if covered is None else max(start, covered)
        lengths.append(max(0, end - at))
        covered = end if covered is None else max(covered, end)
    return lengths
