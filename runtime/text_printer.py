"""TextPrinter: answers on stdout, in the order of the prompts, while several are being written at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from runtime.prompts import Prompt

TITLE_CHARS = 60


class TextPrinter:
    """Prints one answer at a time: the first that has not ended streams live, later ones wait and then follow whole.

    One prompt has no header, so that stdout is its text and a newline. With `live` false each answer appears when it
    has ended (in order all the same).
    """

    def __init__(self, out: TextIO, prompts: Sequence[Prompt], *, live: bool = True) -> None:
        self._out = out
        self._live = live
        self._prompts = prompts
        self._waiting = ["" for _ in prompts]
        self._ended = [False for _ in prompts]
        self._current = 0
        self._opened = False

    def add(self, index: int, text: str, *, ended: bool) -> None:
        """More text of one answer."""
        self._waiting[index] += text
        self._ended[index] = self._ended[index] or ended
        while self._current < len(self._ended):
            current = self._current
            if not self._live and not self._ended[current]:
                return
            self._write(current)
            if not self._ended[current]:
                return
            self._close()

    def interrupt(self) -> None:
        """Shows what the unfinished answers have so far; nothing may be added afterwards."""
        while self._current < len(self._ended):
            if self._opened or self._waiting[self._current]:
                self._write(self._current)
                self._close()
            else:
                self._current += 1

    def _write(self, index: int) -> None:
        text, self._waiting[index] = self._waiting[index], ""
        if not self._opened and (text or self._ended[index]):
            self._opened = True
            if len(self._prompts) > 1:
                separator = "\n" if index else ""
                text = f"{separator}[{index + 1}/{len(self._prompts)}] {title(self._prompts[index])}\n{text}"
        if text:
            self._out.write(text)
            self._out.flush()

    def _close(self) -> None:
        self._out.write("\n")
        self._out.flush()
        self._current += 1
        self._opened = False


def title(prompt: Prompt) -> str:
    """A prompt in one short line."""
    if isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt[0], int):
        text = f"{len(prompt)} token ids"
    else:
        text = str(prompt[-1]["content"])  # type: ignore[index]
    line = " ".join(text.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 3] + "..."
