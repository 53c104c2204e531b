"""Paths as people write them: in a configuration, on the command line, in the environment."""

from __future__ import annotations

from os import PathLike
from pathlib import Path


def user_path(text: str | PathLike[str]) -> Path:
    """The path, with ~ and ~USER as the home folders that they stand for.

    Raises ValueError that says what no path can be: nothing at all, which as a path would be the working folder, the home of
    somebody who is not known here, a NUL character.
    """
    if text == "":
        raise ValueError("it is empty")
    path = Path(text)
    if "\0" in str(path):
        raise ValueError("a path holds no NUL character")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path.parts[0]} is nobody's home folder here") from None
