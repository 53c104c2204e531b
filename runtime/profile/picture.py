"""A profile as a PNG, by matplotlib: the timeline above, what a step consists of and the gaps between replays below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import DraftgraphError
from runtime.profile.analysis import Analysis
from runtime.profile.chrome_trace import TITLES
from runtime.profile.lanes import COLOURS, Lane, lanes_of, middle_steps
from runtime.profile.trace import Mode

INCHES, DPI = 14.0, 110
LABEL_SHARE = 0.0075
"""Of the axis, for one character in a bar."""
FEWEST_ROWS = 6
"""That a panel of bars has room for: one bar alone would fill it."""


class NoPictureError(DraftgraphError):
    """matplotlib is not installed."""


def draw(passes: Mapping[Mode, Analysis], record: Mapping[str, Any], file: Path) -> None:
    """Write the picture.

    Raises:
        NoPictureError: matplotlib is missing; the page needs nothing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPictureError("no PNG: matplotlib is not installed; pip install draftgraph[profile], or open the page") from error
    timelines = [(mode, passes[mode]) for mode in (Mode.HOST, Mode.GRAPH, Mode.NODE, Mode.EVENTS) if mode in passes][:2]
    heights = [2.2] * len(timelines) + [3.0]
    figure = Figure(figsize=(INCHES, sum(heights) + 1.4), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    facts = record["facts"]
    figure.suptitle(
        f"{facts['model']['source']} on {str(facts['device']).split(',')[0]}, concurrency {facts['concurrency']}: "
        f"step {record['step_ms']:.3f} ms, {record['tokens_per_step']:.2f} tokens a step",
        fontsize=13,
    )
    for row, (mode, analysis) in enumerate(timelines):
        begin, end = middle_steps(analysis, 1 if mode is Mode.NODE else 3)
        _timeline(figure.add_subplot(grid[row, :]), lanes_of(analysis, begin, end), begin, end, TITLES[mode])
    _bars(figure.add_subplot(grid[-1, 0]), *_composition(record))
    _bars(figure.add_subplot(grid[-1, 1]), *_right(record))
    figure.savefig(file)


def _timeline(axes: Any, lanes: Sequence[Lane], begin: int, end: int, title: str) -> None:
    unit, scale = ("ms", 1e6) if end - begin >= 2_000_000 else ("us", 1e3)
    seen: dict[str, Any] = {}
    for number, lane in enumerate(lanes):
        for bar in lane.bars:
            colour = COLOURS.get(bar.group, "#888888")
            left, width = (bar.start - begin) / scale, (bar.end - bar.start) / scale
            # The edge keeps what is shorter than a pixel visible.
            drawn = axes.barh(number, width, left=left, color=colour, edgecolor=colour, linewidth=0.4, height=0.72)
            seen.setdefault(bar.group, drawn)
            if label := bar.label((bar.end - bar.start) / (end - begin) / LABEL_SHARE):
                dark = bar.group in ("collect", "elementwise")
                middle = ((bar.start + bar.end) / 2 - begin) / scale
                axes.text(middle, number, label, ha="center", va="center", fontsize=8, color="#222" if dark else "white")
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, (end - begin) / scale)
    axes.set_xlabel(f"{unit} from the beginning of a step", fontsize=9)
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(seen.values(), seen, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)


Row = tuple[str, float, str, str]
"""Name, value, text and colour of a bar."""


def _composition(record: Mapping[str, Any]) -> tuple[str, list[Row]]:
    """Title and rows of what a step consists of: by family where a pass knows, else by replay."""
    node = record["passes"].get("node")
    if node is not None:
        key, shares = max(node["shares"].items(), key=lambda item: sum(share["us"] for share in item[1]))
        rows = [(share["family"], share["us"], _share_text(share), share["family"]) for share in shares]
        return f"inside {key}, us (node pass scaled to the graph pass)", rows
    if "shares" in record:
        shares = record["shares"]["step"]
        return "work of a step, us", [
            (share["family"], share["us"], f"{share['us']:,.0f} us, {share['percent']:.1f} %", share["family"].partition(" ")[0])
            for share in shares
        ]
    spans = record["passes"].get("graph", record["passes"]["events"])["replay_ms"]
    return "replays, us", [(key, ms * 1e3, f"{ms * 1e3:,.1f} us", key.partition("[")[0]) for key, ms in spans.items()]


def _share_text(share: Mapping[str, Any]) -> str:
    rate = f", {share['gigabytes_per_s']:.0f} GB/s" if "gigabytes_per_s" in share else ""
    copy = f" ({share['percent_of_copy']:.0f} % of a copy)" if "percent_of_copy" in share else ""
    return f"{share['us']:,.0f} us, {share['percent']:.1f} %{rate}{copy}"


def _right(record: Mapping[str, Any]) -> tuple[str, list[Row]]:
    """Gaps between replays where they were measured, else the phases of the host."""
    passes = record["passes"]
    gaps = passes.get("graph", passes.get("events", {})).get("gaps")
    if gaps:
        counts = list(gaps["histogram"].items())
        last = max((place for place, (_, count) in enumerate(counts) if count), default=0)
        rows = [(f"{name} us", float(count), str(count), "update") for name, count in counts[: last + 1]]
        busy = passes.get("graph", {}).get("busy_percent")
        note = f"; device busy at most {busy:.2f} %" if busy is not None else ""
        return f"gaps between replays by length{note}", rows
    phases = record["host_phases_ms"]
    return "host, us a step (in collect the queued work runs)", [
        (name, ms * 1e3, f"{ms * 1e3:,.0f} us", name) for name, ms in phases.items() if name != "outside"
    ]


def _bars(axes: Any, title: str, rows: Sequence[Row]) -> None:
    for number, (_, value, text, group) in enumerate(rows):
        axes.barh(number, value, color=COLOURS.get(group, "#888888"), edgecolor="#888", linewidth=0.5, height=0.7)
        axes.text(value, number, f" {text}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    axes.set_xticks([])
    axes.set_ylim(max(len(rows), FEWEST_ROWS) - 0.5, -0.5)
    axes.set_xlim(0, 2.4 * max((value for _, value, *_ in rows), default=1.0))
    axes.set_title(title, fontsize=11, loc="left")
