"""Graphs that are replayed in turn: what makes one slower for a while, a clock or a neighbour, meets all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

TURNS = 5


def times_in_turn(
    device: Any, stream: Any, records: dict[str, Callable[[], None]], *, turns: int = TURNS, replays: int = 1
) -> dict[str, list[float]]:
    """Microseconds of the graph of each, by turn: replayed in turn, `replays` times in a row, once more before it counts."""
    graphs = {}
    for name, record in records.items():
        record()  # compiles, outside the capture
        with stream.capture(f"measure.{name}") as captured:
            record()
        graphs[name] = captured.graph
    begin, end = (device.event(f"measure.{which}", timing=True) for which in ("begin", "end"))
    times: dict[str, list[float]] = {name: [] for name in records}
    for turn in range(turns + 1):
        for name, graph in graphs.items():
            stream.record(begin)
            for _ in range(replays):
                graph.launch(stream)
            stream.record(end)
            end.synchronize()
            if turn > 0:
                times[name].append(end.milliseconds_since(begin) * 1e3 / replays)
    return times


def measure_in_turn(
    device: Any, stream: Any, records: dict[str, Callable[[], None]], *, turns: int = TURNS, replays: int = 1
) -> dict[str, float]:
    """The medians of `times_in_turn`."""
    times = times_in_turn(device, stream, records, turns=turns, replays=replays)
    return {name: statistics.median(values) for name, values in times.items()}
