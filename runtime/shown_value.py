"""A value in a message: short, whatever was given. A few lines of YAML can stand for gigabytes, or hold themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

SHOWN_VALUE_CHARS = 60


def shown(value: object, scalar: Callable[[Any], str] = repr) -> str:
    """At most SHOWN_VALUE_CHARS characters, and no more of a list or mapping is looked at. scalar: spells what is neither."""
    text = ""
    for piece in _pieces(value, scalar):
        text += piece
        if len(text) > SHOWN_VALUE_CHARS:
            return text[: SHOWN_VALUE_CHARS - 3] + "..."
    return text


def _pieces(value: object, scalar: Callable[[Any], str]) -> Iterator[str]:
    if type(value) is dict:
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, scalar)
            yield ": "
            yield from _pieces(item, scalar)
        yield "}"
    elif type(value) is list:
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, scalar)
        yield "]"
    else:
        try:
            yield scalar(value)
        except ValueError:  # Python prints no integer of more than 4300 digits
            yield "an integer of thousands of digits"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """ "1 prompt", "2 prompts", "2 entries". plural: of a noun that does not take an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
