"""What a trace must be before anything is read off it. A trace that fails is refused whole: half of it would be believed."""

from __future__ import annotations

from collections import Counter, defaultdict

from runtime.profile.trace import Activity, Kind, Mode, Trace, TraceRefusedError


def check_trace(trace: Trace) -> None:
    """Refuse a trace whose records are incomplete or contradict what we counted ourselves.

    Raises:
        TraceRefusedError: dropped records, records without times, counts that disagree, a window that is none.
    """
    if trace.dropped:
        raise TraceRefusedError(f"{trace.mode.value} trace: {trace.dropped} records were dropped; profile fewer steps (--steps)")
    if trace.lost_marks:
        raise TraceRefusedError(f"{trace.mode.value} trace: {trace.lost_marks} host phases were lost; profile fewer steps")
    _check_times(trace)
    _check_replays(trace)
    if trace.mode in (Mode.GRAPH, Mode.NODE, Mode.EVENTS):
        spans = replay_rows(trace)
        if trace.mode is Mode.NODE:
            _check_node_counts(trace, spans)
    _check_window(trace)


def replay_rows(trace: Trace) -> list[list[Activity]]:
    """The records of each replay, in the order of launch: one record, or in node mode as many as it has nodes.

    Raises:
        TraceRefusedError: as many launches were recorded as were not made, or one graph ran under two names.
    """
    if trace.mode is Mode.NODE:
        launches: dict[int, list[Activity]] = defaultdict(list)
        for activity in trace.activities:
            if activity.graph:
                launches[activity.launch].append(activity)
        rows = sorted(launches.values(), key=lambda nodes: min(node.start for node in nodes))
        what = "launches with node records"
    else:
        rows = [[row] for row in sorted(_rows(trace, Kind.GRAPH), key=lambda row: row.start)]
        what = "graph records"
    if len(rows) != len(trace.replays):
        raise TraceRefusedError(
            f"{trace.mode.value} trace: {len(rows)} {what}, but our own counters have {len(trace.replays)} replays; "
            "nothing is read off a trace that misses some, and none may run beside the profiled engine"
        )
    _check_names(trace, rows)
    return rows


def _check_times(trace: Trace) -> None:
    zero = sum(activity.start == 0 or activity.end == 0 for activity in trace.activities)
    if zero:
        raise TraceRefusedError(
            f"{trace.mode.value} trace: {zero} of {len(trace.activities)} records have a timestamp of 0, which means that nobody "
            "could get it; profile fewer steps (--steps)"
        )
    backwards = sum(activity.end < activity.start for activity in trace.activities)
    if backwards:
        raise TraceRefusedError(f"{trace.mode.value} trace: {backwards} records end before they begin")


def _check_replays(trace: Trace) -> None:
    seen = dict(Counter(replay.key for replay in trace.replays))
    if seen != {key: count for key, count in trace.launches.items() if count}:
        raise TraceRefusedError(
            f"{trace.mode.value} trace: replays noted one by one, {seen}, differ from the counters of the graph library, "
            f"{dict(trace.launches)}"
        )


def _check_names(trace: Trace, rows: list[list[Activity]]) -> None:
    """Rows are matched with replays by order; that a graph's id goes with one key, and a key with one id, proves the order."""
    key_of: dict[int, str] = {}
    for nodes, replay in zip(rows, trace.replays, strict=True):
        graph = nodes[0].graph
        if graph and key_of.setdefault(graph, replay.key) != replay.key:
            raise TraceRefusedError(
                f"{trace.mode.value} trace: graph {graph} ran as {key_of[graph]} and as {replay.key}: records and "
                "replays are not in the same order"
            )
    if len(set(key_of.values())) != len(key_of):
        raise TraceRefusedError(f"{trace.mode.value} trace: one key has several graphs: {key_of}")


def _check_node_counts(trace: Trace, rows: list[list[Activity]]) -> None:
    counts: dict[str, set[int]] = defaultdict(set)
    for nodes, replay in zip(rows, trace.replays, strict=True):
        counts[replay.key].add(len(nodes))
    for key, seen in counts.items():
        if len(seen) > 1:
            raise TraceRefusedError(f"node trace: replays of {key} have {sorted(seen)} node records: some are missing")


def _check_window(trace: Trace) -> None:
    first, last = trace.window
    bounded = 0 <= first < last < len(trace.replays)
    if not bounded or not (trace.replays[first].opens and trace.replays[last].opens):
        raise TraceRefusedError(
            f"{trace.mode.value} trace: window = replays {first} to {last} of {len(trace.replays)}: must hold a whole step; "
            "profile more steps (--steps)"
        )


def _rows(trace: Trace, kind: Kind) -> list[Activity]:
    return [activity for activity in trace.activities if activity.kind is kind]
