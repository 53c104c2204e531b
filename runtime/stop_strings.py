"""StopStrings: finds the strings that end a request in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, holds back what may be the beginning of a stop string, and cuts the text before the first one.

    `matched` is the stop string that was found, None until then.

    Args:
        stops: the strings.
        include: cut behind the stop string instead of before it.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now. After a match nothing more comes."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        # The match that is complete first wins, the longer of two that end together: what feeding single characters
        # would find, so that neither the size of the pieces (a verified block, one token) nor the order of `stops` counts.
        hits = [(place + len(stop), place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if hits:
            end, place, self.matched = min(hits)
            self._held = ""
            return text[: end if self._include else place]
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _held_length(self, text: str) -> int:
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
