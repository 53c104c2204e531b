"""Ctrl-C that Python would lose: in a callback or a destructor no exception can go on, so it is raised again behind it."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LATER_SECONDS = 0.01


@contextmanager
def repeated_interrupts() -> Iterator[None]:
    """While it lasts, a KeyboardInterrupt that was raised where none can go on (LLVM calls Python while it compiles, an import ends
    in a callback, an object is destroyed) comes again as soon as it can."""
    before = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # From another thread and a little later: at once, it would be raised in this hook and be lost as well.
            threading.Timer(_LATER_SECONDS, _thread.interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, for it may come back as another error: Numba fails over code that LLVM did not get to keep."""
    seen = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        seen.set()
        signal.default_int_handler(number, frame)

    # Only the main thread may set a handler; one that somebody else has set stays.
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        with repeated_interrupts():
            yield seen.is_set
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
