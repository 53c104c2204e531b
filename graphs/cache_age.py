"""When folders of compiled kernels were last used, and the end of those that nobody has used for long.

Each set of sources has a folder of its own (graphs/compile_cache.py), so that whoever changes kernels leaves old ones behind. What
was measured of the kernels on a GPU lies in it too (runtime/models/choose_ops.py).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

UNUSED_DAYS = 30.0
DAY_SECONDS = 86400.0
MARK = "used"
_SOURCES = re.compile(r"[0-9a-f]{16}")
_DYING = re.compile(r"\.[0-9a-f]{16}\.\d+\.gone")


@dataclass(frozen=True)
class CacheFolder:
    """What one set of sources was compiled to. used: seconds since the epoch."""

    path: Path
    used: float

    @property
    def nbytes(self) -> int:
        """Of its files, as they are now."""
        total = 0
        for folder, _, files in os.walk(self.path):
            for file in files:
                with suppress(OSError):
                    total += os.stat(os.path.join(folder, file)).st_size
        return total


def mark_used(folder: Path) -> bool:
    """Note that a process uses `folder` from now on. True: nobody has before, or it cannot be noted."""
    mark = folder / MARK
    try:
        new = not mark.exists()
        mark.touch()
    except OSError:
        return True
    return new


def last_used(folder: Path) -> float:
    """When a process last noted that it uses `folder`, or last added something to it. 0: there is no such folder."""
    times = [0.0]
    for path in (folder / MARK, *(Path(below) for below, _, _ in os.walk(folder))):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def cache_folders(kernels: Path) -> list[CacheFolder]:
    """Of every set of sources below `kernels`, the latest first; other files there are nobody's business."""
    with suppress(OSError):
        folders = [path for path in kernels.iterdir() if _SOURCES.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        return sorted((CacheFolder(path, last_used(path)) for path in folders), key=lambda found: found.used, reverse=True)
    return []


def prune(kernels: Path, keep: str, unused_days: float = UNUSED_DAYS) -> list[Path]:
    """Remove the folders that were not used for so many days; never `keep`, that of the running sources. Returns those removed.

    Other processes may use, fill and prune the same folders meanwhile. A folder is renamed first, in one step: whoever opens it
    afterwards finds none and compiles anew, nobody finds half of one. Whatever cannot be removed stays.
    """
    limit, removed = time.time() - unused_days * DAY_SECONDS, []
    for folder in cache_folders(kernels):
        if folder.path.name == keep or folder.used > limit:
            continue
        dying = kernels / f".{folder.path.name}.{os.getpid()}.gone"
        try:
            folder.path.rename(dying)
        except OSError:  # another process was first, or may not
            continue
        if last_used(dying) > limit and not folder.path.exists():
            with suppress(OSError):
                dying.rename(folder.path)  # somebody began to use it between the look and the renaming
                continue
        shutil.rmtree(dying, ignore_errors=True)
        removed.append(folder.path)
    _finish_others(kernels)
    return removed


def _finish_others(kernels: Path) -> None:
    """What a process that was ended in the middle has left."""
    with suppress(OSError):
        for path in kernels.iterdir():
            # st_ctime is when it was renamed.
            if _DYING.fullmatch(path.name) and path.stat().st_ctime < time.time() - DAY_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
