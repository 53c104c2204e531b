"""Where a piece of work comes from: what it is, which stream it is on, and the line of the program that issued it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parent.parent
_machinery: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """label: what was done; stream: on which stream, None for the host; site: (file, line) or None when sites are not kept."""

    label: str
    stream: str | None
    site: tuple[str, int] | None

    def __str__(self) -> str:
        if self.stream is None:
            return f"the host{self.where}"
        return f"{self.label} on stream `{self.stream}`{self.where}"

    @property
    def where(self) -> str:
        """" (file:line)" of the program that issued the work; "" where nobody looked."""
        if self.site is None:
            return ""
        path = Path(self.site[0])
        shown = path.relative_to(_REPOSITORY) if path.is_relative_to(_REPOSITORY) else path
        return f" ({shown}:{self.site[1]})"


def call_site() -> tuple[str, int]:
    """File and line of the innermost caller outside the virtual device and graphs/."""
    frame = sys._getframe(1)
    while True:
        filename = frame.f_code.co_filename
        hidden = _machinery.get(filename)
        if hidden is None:
            hidden = _machinery[filename] = _is_machinery(filename)
        if not hidden or frame.f_back is None:
            return filename, frame.f_lineno
        frame = frame.f_back


def _is_machinery(filename: str) -> bool:
    path = Path(filename)
    if path.parent == _REPOSITORY / "runtime":
        return path.name.startswith("virtual_")
    return path.parent == _REPOSITORY / "graphs" or path.name == "contextlib.py"
