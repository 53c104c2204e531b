"""Reading YAML strictly (duplicate keys are refused) and merging overrides into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import yaml

from runtime.errors import ConfigError
from runtime.user_path import user_path


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, which YAML otherwise resolves silently to the last one, and for which 1e-5 is a
    number, as it is in YAML 1.2 and in JSON."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.MarkedYAMLError: a key is written twice."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            # Only plain keys: "<<" merges may legally be overridden, and keys that are not text fail later by name.
            if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<":
                if key_node.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key_node.value!r} is written twice", problem_mark=key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


def read_yaml(path: str | PathLike[str], what: str = "config") -> dict[str, Any]:
    """The mapping in a YAML file, which is a `what`. Raises ConfigError for a file that cannot be read or is no mapping."""
    try:
        file = user_path(path)
    except ValueError as error:
        raise ConfigError(f"{what} = {path}: {error}; give a YAML file") from error
    ours = needed = ""
    if what == "config":
        ours, needed = "; the repository's own are in configs/", "; at least model.source is needed (see configs/reference.yaml)"
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{what} = {file}: no such file{ours}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{what} = {file}: is a directory; give a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} = {file}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} = {file}: cannot be read: {error}") from error
    data = parse_yaml(text, f"{what} = {file}")
    if data is None:
        raise ConfigError(f"{what} = {file}: empty{needed}")
    if not isinstance(data, dict):
        raise ConfigError(f"{what} = {file}: must be a mapping of sections, not a {type(data).__name__}")
    return data


def parse_yaml(text: str, what: str) -> Any:
    """Parses one YAML document. Raises ConfigError that starts with `what` and says line and column."""
    try:
        return yaml.load(text, Loader=StrictLoader)  # StrictLoader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{what}: YAML error{place}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{what}: YAML error: {' '.join(str(error).split())}") from error
    except (RecursionError, ValueError) as error:
        # Nesting without end, or a scalar that looks like a date and is none.
        raise ConfigError(f"{what}: YAML error: {error}") from error


def parse_override(text: str, option: str = "--set") -> dict[str, Any]:
    """ "a.b=c" as {"a": {"b": c}}, c parsed as YAML. Raises ConfigError, which names the option that took the text."""
    key, equals, value_text = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"{option} {text}: must be KEY=VALUE with a dotted key, as in scheduler.max_num_seqs=4")
    value = parse_yaml(value_text, f"{option} {text}")
    for part in reversed(parts):
        value = {part: value}
    return value


def merge(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """`base` with `over` laid on it, mapping by mapping; neither argument is changed.

    A section that is written but empty ("runner:" with nothing below) counts as an empty mapping.
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and (below is None or isinstance(below, Mapping)):
            result[key] = merge(below or {}, value)
        else:
            result[key] = value
    return result


def as_written(value: Any) -> Any:
    """A value of a Python program as a file would have it: paths as texts, NumPy's scalars and arrays as Python's own."""
    if isinstance(value, Mapping):
        return {key: as_written(item) for key, item in value.items()}
    if isinstance(value, PathLike):
        return fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value
