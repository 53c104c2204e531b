"""Request files: prompts from a file, each with parameters of its own where it names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config_file import parse_yaml
from runtime.errors import ConfigError, PromptError, SamplingError
from runtime.prompts import Prompt, check_prompt
from runtime.sampling import SamplingParams
from runtime.shown_value import shown
from runtime.user_path import user_path

PROMPT_KEY = "prompt"
_MEANT_AS_REQUEST = re.compile(rf'\s*\{{.*"{PROMPT_KEY}"\s*:')


@dataclass(frozen=True)
class FileRequest:
    """One request of a file.

    where    names it in messages
    prompt   a text, a chat or token ids
    fields   parameters that it sets, by their names in SamplingParams
    """

    where: str
    prompt: Prompt
    fields: Mapping[str, Any] = field(default_factory=dict)

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with the request's own parameters. Raises SamplingError that says where."""
        try:
            return defaults.with_fields(self.fields)
        except SamplingError as error:
            raise SamplingError(f"{self.where}: {error}") from error


def read_request_file(path: str | Path) -> list[FileRequest]:
    """Requests of a file, in order.

    JSON: a list whose elements are texts, chats, token-id lists, or objects {"prompt": ..., "temperature": 0.7, ...}. It is read as
    JSON when the name ends in .json or the whole file is a JSON list. In a file whose name ends in .jsonl each line is one such
    element. YAML, in a file whose name ends in .yaml or .yml: such a list, or lists by kind of prompt, one after the other. Of any
    other file each line that is not blank is a text, or such an object where it begins like one with a prompt.

    Raises PromptError: no such file, not UTF-8 (with line), malformed JSON (with line and column), a key that is written twice,
    wrong element.
    """
    try:
        file = user_path(path)
    except ValueError as error:
        raise PromptError(f"prompt file {path}: {error}; give a file") from error
    text = _read_text(file)
    kind = file.suffix.lower()
    if kind in (".yaml", ".yml"):
        return [_request(value, f"prompt file {file}: prompt {number}") for number, value in enumerate(_yaml(text, file), start=1)]
    if kind != ".jsonl" and (kind == ".json" or text.lstrip().startswith("[")):
        try:
            data = _parse(text)
        except (ValueError, RecursionError) as error:
            # A line that merely begins with a bracket is a prompt like any other, unless the name promises JSON, or it is some.
            if kind == ".json" or not isinstance(error, json.JSONDecodeError | RecursionError):
                raise PromptError(f"prompt file {file}: malformed JSON: {error}") from error
        else:
            if not isinstance(data, list) or not data:
                raise PromptError(f"prompt file {file}: must be a JSON list with at least one prompt")
            return [_request(value, f"prompt file {file}: prompt {number}") for number, value in enumerate(data, start=1)]
    requests = list(_lines(text, file, promised=kind == ".jsonl"))
    if not requests:
        raise PromptError(f"prompt file {file}: empty; write one prompt a line, or a JSON list")
    return requests


def _yaml(text: str, file: Path) -> list[Any]:
    try:
        data = parse_yaml(text, f"prompt file {file}")
    except ConfigError as error:
        raise PromptError(str(error)) from error
    lists = list(data.values()) if isinstance(data, dict) else [data]
    if not lists or not all(isinstance(prompts, list) and prompts for prompts in lists):
        raise PromptError(f"prompt file {file}: must be a YAML list with at least one prompt, or such lists by kind of prompt")
    return [prompt for prompts in lists for prompt in prompts]


def read_prompt_file(path: str | Path) -> list[Prompt]:
    """Prompts of a file whose requests name no parameters. Raises PromptError as `read_request_file`, and where one does."""
    requests = read_request_file(path)
    for request in requests:
        if request.fields:
            names = ", ".join(request.fields)
            raise PromptError(f"{request.where}: sets {names}, but every request here gets the same parameters; remove it")
    return [request.prompt for request in requests]


def _lines(text: str, file: Path, *, promised: bool) -> Iterator[FileRequest]:
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        where = f"prompt file {file}: line {number}"
        if not line.strip():
            continue
        try:
            value = _parse(line)
        except (ValueError, RecursionError) as error:
            if promised or _MEANT_AS_REQUEST.match(line):
                raise PromptError(f"{where}: malformed JSON: {error}") from error
            value = line
        if promised or (isinstance(value, dict) and PROMPT_KEY in value):
            yield _request(value, where)
        else:
            yield FileRequest(where, line)


def _parse(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for a key that is written twice and a number of thousands of digits."""
    return json.loads(text, object_pairs_hook=_distinct, parse_int=_parse_int)


def _parse_int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits)} digits") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"key {key!r} is written twice")
        fields[key] = value
    return fields


def _request(value: Any, where: str) -> FileRequest:
    fields: dict[str, Any] = {}
    if isinstance(value, dict):
        fields = dict(value)
        if PROMPT_KEY not in fields:
            known = f"a text, a chat, token ids, or an object with the key {PROMPT_KEY}"
            raise PromptError(f"{where} = {shown(value)}: must be {known}")
        value = fields.pop(PROMPT_KEY)
    check_prompt(value, where)
    return FileRequest(where, value, fields)


def _read_text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise PromptError(f"prompt file {file}: no such file") from error
    except IsADirectoryError as error:
        raise PromptError(f"prompt file {file}: is a directory; give a file") from error
    except OSError as error:
        raise PromptError(f"prompt file {file}: cannot be read: {error.strerror}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PromptError(
            f"prompt file {file}: line {line}: invalid UTF-8 at byte {error.start}; save the file as UTF-8"
        ) from error
