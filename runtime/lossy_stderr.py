"""stderr on a full disk, or whose reader went away: what the program says there is no reason to lose an answer."""

from __future__ import annotations

import io
import os
import sys


class LossyStderr(io.TextIOWrapper):
    """Like the stream of a descriptor, until that refuses something: from then on it goes nowhere."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        # What is still buffered would be refused at every later flush, and once more when Python exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def tolerate_lost_stderr() -> None:
    """Put such a stream into the place of the process's stderr. One that somebody else has put there stays."""
    stream = sys.stderr
    if stream is sys.__stderr__ and isinstance(stream, io.TextIOWrapper) and not isinstance(stream, LossyStderr):
        raw = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115 - for as long as the process lives
        sys.stderr = LossyStderr(raw, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
