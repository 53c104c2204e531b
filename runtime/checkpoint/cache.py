"""The user's cache folder: where fetched checkpoints live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE_VARIABLE = "DRAFTGRAPH_CACHE"


def cache_folder() -> Path:
    """$DRAFTGRAPH_CACHE, or `draftgraph` in the platform's cache folder. It need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "draftgraph"
