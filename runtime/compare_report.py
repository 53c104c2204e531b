"""A comparison as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

UNITS = {"tpot_ms": "ms a token", "tokens_per_s": "tok/s"}


def render_compare(report: Mapping[str, Any]) -> str:
    """What runtime.compare.compare returns: verdicts, with a ratio where one is allowed."""
    return "\n".join(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    facts = report["facts"]
    yield f"{facts['model']['source']} ({facts['model']['dtype']}) on {facts['device']}"
    yield f"{report['pairs']} pairs in the order AB BA, equal arms first"
    heading = None
    for result in report["results"]:
        pair = f"{result['first']}  against  {result['second']}"
        if pair != heading:
            yield ""
            yield pair
            heading = pair
        line = f"  concurrency {result['concurrency']:<3} {UNITS[result['metric']]:11} {result['verdict']}"
        if "ratio" in result:
            low, high = (math.exp(bound) for bound in result["interval"])
            first, second = result["medians"]
            line += f"  {first:.3f} against {second:.3f}: {result['ratio']:.3f} times as good (95 %: {low:.3f} to {high:.3f})"
        yield line
        yield f"      {result['detail']}"
