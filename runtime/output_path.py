"""Where results go: files and folders that are proven writable before the work that fills them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from runtime.errors import ConfigError
from runtime.user_path import user_path

STDOUT = "-"


def refuse_unwritable(what: str, file: str | Path | None) -> None:
    """Is a result going to find its file? `-` is stdout. Leaves nothing behind, and what is in a file as it is.

    Args:
        what: the file as the user knows it, such as `--json bench.json`.

    Raises:
        ConfigError: a folder that does not exist, a folder in the place of a file, no permission.
    """
    if file is None or str(file) == STDOUT:
        return
    # Behind a link that leads nowhere yet is where the file would be.
    path = Path(os.path.realpath(_path(what, file)))
    try:
        existed = path.exists()  # raises for a folder that may not be searched, and for a name that is too long
        if existed and not path.is_file() and not path.is_dir():
            # A pipe or a device: opening one waits for its reader, closing it ends what the reader sees.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        with path.open("a", encoding="utf-8"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise _refused(what, error) from error


def writable_folder(what: str, folder: str | Path, files: tuple[str, ...] = ()) -> Path:
    """The folder, as `refuse_unwritable` is for a file; it is made when there is something to put into it.

    Args:
        files: names of what it will hold, where they are known: one that is there already must be writable too.
    """
    path = _path(what, folder)
    try:
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        for each in missing:
            each.rmdir()
    except OSError as error:
        raise _refused(what, error) from error
    for name in files:
        if (path / name).exists():
            refuse_unwritable(f"{what}: {name}", path / name)
    return path


def write_text(what: str, file: str | Path, text: str) -> None:
    """`text` and a newline into `file`. Raises ConfigError."""
    try:
        _path(what, file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _refused(what, error) from error


def _path(what: str, path: str | Path) -> Path:
    try:
        return user_path(path)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}; name a place") from error


def _refused(what: str, error: OSError) -> ConfigError:
    return ConfigError(f"{what}: cannot be written: {error.strerror}; name another place, or free this one")
