"""A profile as one HTML page that opens by itself: the timeline as SVG with a tooltip on each bar, and the table under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from runtime.profile.analysis import Analysis
from runtime.profile.chrome_trace import TITLES
from runtime.profile.lanes import COLOURS, Lane, lanes_of, middle_steps
from runtime.profile.table import render_profile
from runtime.profile.trace import Mode

WIDTH, LEFT, ROW, PAD = 1400, 170, 34, 8
LABEL_PIXELS = 7
"""Of one character in a bar: what does not fit is left to the tooltip."""
SHOWN_STEPS = {Mode.NODE: 1}
MOST_STEPS = 3


def render_page(passes: Mapping[Mode, Analysis], record: Mapping[str, Any]) -> str:
    """The whole document; it loads nothing."""
    facts = record["facts"]
    title = f"{facts['model']['source']}: {record['step_ms']:.3f} ms a step"
    body = [f"<h1>{escape(title)}</h1><p>{escape(str(facts['device']))}, concurrency {facts['concurrency']}</p>"]
    for mode, analysis in passes.items():
        begin, end = middle_steps(analysis, SHOWN_STEPS.get(mode, MOST_STEPS))
        lanes = lanes_of(analysis, begin, end)
        body.append(f"<h2>{escape(TITLES[mode])}</h2>")
        body.append(_svg(lanes, begin, end))
        body.append(_legend(lanes))
    body.append(f"<h2>figures</h2><pre>{escape(render_profile(record))}</pre>")
    style = (
        "body{font:14px system-ui,sans-serif;margin:24px;max-width:1440px}svg text{font:12px system-ui,sans-serif}"
        "pre{font-size:13px;background:#f6f6f6;padding:12px;overflow-x:auto}.key{display:inline-block;margin:4px 14px 4px 0}"
        ".key i{display:inline-block;width:12px;height:12px;margin-right:5px;border:1px solid #888}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{style}</style>"
        + "".join(body)
        + "</html>\n"
    )


def _svg(lanes: Sequence[Lane], begin: int, end: int) -> str:
    height = len(lanes) * (ROW + PAD) + 30
    scale = (WIDTH - LEFT) / (end - begin)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img">'
        + "".join(_rows(lanes, begin, scale))
        + "".join(_axis(end - begin, scale, height))
        + "</svg>"
    )


def _rows(lanes: Sequence[Lane], begin: int, scale: float) -> Iterator[str]:
    for number, lane in enumerate(lanes):
        y = number * (ROW + PAD)
        yield f'<text x="0" y="{y + ROW * 0.62:.0f}">{escape(lane.name)}</text>'
        for bar in lane.bars:
            x, width = LEFT + (bar.start - begin) * scale, max((bar.end - bar.start) * scale, 0.3)
            tip = f"{bar.text}: {(bar.end - bar.start) / 1e3:.1f} us"
            yield (
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{COLOURS.get(bar.group, "#888888")}">'
                f"<title>{escape(tip)}</title></rect>"
            )
            if label := bar.label(width / LABEL_PIXELS):
                colour = "#333" if bar.group in ("collect", "elementwise") else "#fff"
                place = f'x="{x + 5:.1f}" y="{y + ROW * 0.62:.0f}"'
                yield f'<text {place} fill="{colour}" pointer-events="none">{escape(label)}</text>'


def _axis(length: int, scale: float, height: int) -> Iterator[str]:
    step = tick_ns(length)
    unit, name = (1e6, "ms") if step > 1e5 else (1e3, "us")
    for tick in range(0, length + 1, step):
        x = LEFT + tick * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}" stroke="#0002"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick / unit:g} {name}</text>'


def tick_ns(length: int) -> int:
    """A round distance of ticks on an axis of this length: five to twelve of them."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if length <= 12 * step * factor:
                return step * factor
        step *= 10


def _legend(lanes: Sequence[Lane]) -> str:
    groups = dict.fromkeys(bar.group for lane in lanes for bar in lane.bars)
    keys = (f'<span class=key><i style="background:{COLOURS.get(group, "#888888")}"></i>{escape(group)}</span>' for group in groups)
    return f"<p>{''.join(keys)}</p>"
