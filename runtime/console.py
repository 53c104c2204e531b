"""What the program says on stderr while it works: log lines and progress bars. stdout carries answers only."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from rich import filesize
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

Advance: TypeAlias = Callable[[int, int], None]
"""advance(done, total): bytes or things done so far, and in all (0 when not known)."""

ProgressBars: TypeAlias = Callable[[str, str], AbstractContextManager[Advance]]
"""bars(title, unit) opens a progress bar; inside it, call the given Advance. unit is "bytes" or the plural of what is counted."""


LINE_SECONDS = 5.0
"""Between two lines of progress where stderr is no terminal."""


def start_logging(*, quiet: bool) -> None:
    """Sends the program's log records to stderr, warnings only when `quiet`."""
    logger = logging.getLogger("runtime")
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    if sys.stderr.isatty():
        logger.addHandler(RichHandler(console=Console(stderr=True), show_path=False, show_level=False, markup=False))
    else:
        # A file or a pipe gets plain lines, not wrapped to the width of a terminal that is not there.
        plain = logging.StreamHandler(sys.stderr)
        plain.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(plain)


class _CountColumn(ProgressColumn):
    """Things done, and of how many once that is known."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f"/{task.total:.0f}"
        return Text(f"{task.completed:.0f}{total} {self._unit}")


@contextmanager
def progress_bar(title: str, unit: str, *, still: bool = False) -> Iterator[Advance]:
    """A bar on stderr; in a pipe or file a line every few seconds and one when it is done.

    still: it is drawn when it advances and never between, so that no thread of it runs while something is timed.
    """
    if not sys.stderr.isatty():
        with _progress_lines(title, unit) as advance:
            yield advance
        return
    amount = DownloadColumn() if unit == "bytes" else _CountColumn(unit)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=not still) as progress:
        task = progress.add_task(title, total=None)

        def advance_bar(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total or None, refresh=still)

        yield advance_bar


@contextmanager
def _progress_lines(title: str, unit: str) -> Iterator[Advance]:
    began = last = time.monotonic()
    reached = (0, 0)

    def say() -> None:
        done, total = (filesize.decimal(number) if unit == "bytes" else str(number) for number in reached)
        of_all = f"/{total}" if reached[1] else ""
        name = "" if unit == "bytes" else f" {unit}"
        seconds = time.monotonic() - began
        print(f"{time.strftime('%H:%M:%S')} {title}: {done}{of_all}{name}, {seconds:.0f} s", file=sys.stderr, flush=True)

    def advance(done: int, total: int) -> None:
        nonlocal last, reached
        reached = (done, total)
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            say()

    try:
        yield advance
    finally:
        say()


def still_bar(title: str, unit: str) -> AbstractContextManager[Advance]:
    """For what is timed: see `progress_bar`."""
    return progress_bar(title, unit, still=True)


@contextmanager
def silent_bar(title: str, unit: str) -> Iterator[Advance]:
    """The same without output."""

    def advance(done: int, total: int) -> None:
        return None

    yield advance
