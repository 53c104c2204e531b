"""Gaps inside a replay: behind which of its nodes, and before which, none of them ran. Only a node trace sees them.

A replay is a chain of launches. Where one may not begin before the one ahead of it has ended, the device is idle for as long as a
launch takes to follow (docs/launches.md); these are short, many, and no record of a whole replay has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from runtime.profile.analysis import Analysis
from runtime.profile.families import PRODUCTS, family_of, operation
from runtime.profile.trace import Activity, Kind

LIBRARY = "library product"
"""What products of the device's library are called: their kernels have names of their own for each shape."""


@dataclass(frozen=True)
class InnerGap:
    """Between two operations that follow one another in a replay.

    Attributes:
        count: a replay. share: of the replay's span. time_ns: the same share of the span that the graph pass measured.
        median_ns: of one, as the node pass saw it.
    """

    before: str
    after: str
    count: float
    share: float
    time_ns: float
    median_ns: float


def inner_gaps(node: Analysis, key: str, span_ns: float) -> list[InnerGap]:
    """Where the replays of `key` in the window are idle, the pair of operations that costs most first. Their shares sum up to that
    of runtime.profile.families.BETWEEN.

    Args:
        node: of a node trace.
        span_ns: time of one replay, from the graph pass.

    Raises:
        TraceRefusedError: not a node trace, or no replay of `key` in its window.
    """
    chosen = node.replays_inside(key, "gaps inside replays")
    lengths: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i in chosen:
        for gap, before, after in _gaps_of(node.nodes[i]):
            lengths[_name(before, node.trace.families), _name(after, node.trace.families)].append(gap)
    whole = sum(node.spans[i][1] - node.spans[i][0] for i in chosen)
    found = [
        InnerGap(*pair, len(gaps) / len(chosen), sum(gaps) / whole, sum(gaps) / whole * span_ns, median(gaps))
        for pair, gaps in lengths.items()
    ]
    return sorted(found, key=lambda gap: -gap.share)


def _gaps_of(nodes: list[Activity]) -> list[tuple[int, Activity, Activity]]:
    """Length, the node that ended last before, and the one that ended it, of each gap of a replay."""
    gaps = []
    ordered = sorted(nodes, key=lambda node: node.interval)
    latest = ordered[0]
    for _, node in pairwise(ordered):
        if node.start > latest.end:
            gaps.append((node.start - latest.end, latest, node))
        if node.end > latest.end:
            latest = node
    return gaps


def _name(activity: Activity, families: Mapping[str, str]) -> str:
    if activity.kind is not Kind.KERNEL:
        return "copy"
    name = operation(activity.name)
    return LIBRARY if name not in families and family_of(activity, families) == PRODUCTS else name
