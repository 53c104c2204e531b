"""The user's cache folder: where fetched checkpoints live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime.errors import SourceError
from runtime.user_path import user_path

CACHE_VARIABLE = "DRAFTGRAPH_CACHE"


def cache_folder() -> Path:
    """$DRAFTGRAPH_CACHE, or `draftgraph` in the platform's cache folder. It need not exist yet. Raises SourceError: no path."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        try:
            return user_path(chosen)
        except ValueError as error:
            raise SourceError(f"{CACHE_VARIABLE} = {chosen}: {error}; set it to a folder") from error
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "draftgraph"
