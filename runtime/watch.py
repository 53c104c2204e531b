"""The live view of `draftgraph run --watch`: what the engine does while it answers, on stderr, redrawn a few times a second.

It is drawn by the thread that steps the engine, between steps: nothing here reads a value while it is written, and what the view
costs is the caller's own time and not a step's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from graphs.key import Family
from runtime.metrics import AcceptanceStats
from runtime.report import StreamEvent
from runtime.text_printer import TextPrinter

INTERVAL_S = 0.2
RATE_WINDOW_S = 2.0


@dataclass(frozen=True)
class Snapshot:
    """What the view shows of one moment.

    Attributes:
        tokens_per_s: of the last RATE_WINDOW_S; None until there are two moments.
        acceptance: drafts so far; None without speculation.
        replays: launches of graphs by family. fall_outs: launches that replayed nothing, by reason.
        waits: host waits by kind: an event a step is what a run needs; of the compute stream there should be none.
    """

    tokens: int
    tokens_per_s: float | None
    acceptance: AcceptanceStats | None
    running: int
    waiting: int
    steps_in_flight: int
    preemptions: int
    kv_used: int
    kv_blocks: int
    replays: dict[str, int]
    padded_rows: int
    fall_outs: dict[str, int]
    stale_reads_refused: int
    waits: dict[str, int]


def snapshot(engine: Any, tokens: int, tokens_per_s: float | None) -> Snapshot:
    """Of an engine between two steps. tokens: delivered so far."""
    scheduler, runner = engine.scheduler, engine.runner
    families: dict[str, int] = dict.fromkeys((family.value for family in Family), 0)
    for key, count in runner.library.launches.items():
        families[key.family.value] += count
    counters = runner.device.counters
    return Snapshot(
        tokens=tokens,
        tokens_per_s=tokens_per_s,
        acceptance=scheduler.acceptance if scheduler.limits.num_speculative_tokens else None,
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        steps_in_flight=scheduler.num_steps_in_flight,
        preemptions=scheduler.counters.preemptions,
        kv_used=scheduler.blocks.num_blocks - scheduler.blocks.num_free,
        kv_blocks=scheduler.blocks.num_blocks,
        replays={family: count for family, count in families.items() if count},
        padded_rows=runner.paths.padded_rows,
        fall_outs=dict(runner.paths.fall_outs),
        stale_reads_refused=runner.table.counters.stale_reads_refused,
        waits={
            "event": counters.event_synchronizes,
            "compute stream": counters.synchronizes_by_stream["compute"],
            "other streams": counters.stream_synchronizes - counters.synchronizes_by_stream["compute"],
            "device": counters.device_synchronizes,
        },
    )


def render(shown: Snapshot) -> Table:
    """A row a value, what is not as it should be in red."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rate = "-" if shown.tokens_per_s is None else f"{shown.tokens_per_s:.1f} tok/s"
    table.add_row("tokens", f"{shown.tokens}, {rate}")
    if shown.acceptance is not None:
        rates = " ".join(f"{rate:.2f}" for rate in shown.acceptance.per_position_acceptance)
        table.add_row("acceptance", f"length {shown.acceptance.mean_acceptance_length:.2f}, by position {rates}")
    queue = f"{shown.running} running, {shown.waiting} waiting, {shown.steps_in_flight} steps in flight"
    table.add_row("queue", queue + (f", {shown.preemptions} preemptions" if shown.preemptions else ""))
    table.add_row("KV cache", f"{shown.kv_used} of {shown.kv_blocks} blocks, {100 * shown.kv_used / shown.kv_blocks:.0f} %")
    table.add_row("replays", f"{_listed(shown.replays)}; {shown.padded_rows} padded rows")
    table.add_row("fall-outs", _alarm(shown.fall_outs))
    table.add_row("stale reads", _alarm({"refused": shown.stale_reads_refused}))
    unwanted = {name: count for name, count in shown.waits.items() if name != "event"}
    table.add_row("host waits", f"{shown.waits['event']} for an event; {_alarm(unwanted)}")
    return table


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _alarm(counts: dict[str, int]) -> str:
    """What should not happen, in red where it has."""
    happened = {name: count for name, count in counts.items() if count}
    return f"[red]{_listed(happened)}[/red]" if happened else "none"


class Watch:
    """A context around the events of a run. Call `add` with each; the view redraws itself when its time has come.

    Args:
        engine: open; what it counted before is shown as well, except tokens.
        printer: gets the text when the view has ended: a terminal shows one or the other.
        console: stderr's, unless a test brings another.
    """

    def __init__(
        self,
        engine: Any,
        printer: TextPrinter | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._printer = printer
        self._held: list[StreamEvent] = []
        self._clock = clock
        self._tokens = 0
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._drawn = clock()
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def add(self, event: StreamEvent) -> None:
        """A step of a request."""
        self._held.append(event)
        self._tokens += len(event.token_ids)
        now = self._clock()
        if now - self._drawn >= INTERVAL_S:
            self._draw(now)

    def _draw(self, now: float) -> None:
        self._drawn = now
        self._seen.append((now, self._tokens))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        rate = (self._tokens - before) / (now - began) if now > began else None
        self._live.update(render(snapshot(self._engine, self._tokens, rate)), refresh=True)

    def __enter__(self) -> Watch:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw(self._clock())
        self._live.stop()
        if not self._console.is_terminal:
            self._console.line()  # rich ends the last line on terminals only
        if self._printer is not None:
            for event in self._held:
                self._printer.add(event.index, event.text, ended=event.output is not None)
