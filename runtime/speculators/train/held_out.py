"""Held-out prompts: read by kind, and kept away from what a drafter is trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from runtime.config_file import read_yaml
from runtime.errors import ConfigError

RUN_OF_WORDS = 8


def read_kinds(path: str | Path) -> dict[str, list[str]]:
    """Prompts by kind of a YAML file {kind: [prompt, ...]}. Raises ConfigError."""
    values = read_yaml(path, "prompts by kind")
    for kind, texts in values.items():
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"{path}: {kind}: must be a list of prompts, each a text")
    return {str(kind): list(texts) for kind, texts in values.items()}


class HeldOut:
    """Prompts that training must not see: no prompt may contain one, or share eight words in a row with one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs: dict[int, set[tuple[str, ...]]] = {}
        for text in texts:
            words = _words(text)
            size = min(RUN_OF_WORDS, len(words))
            self._runs.setdefault(size, set()).update(_runs(words, size))

    def admits(self, text: str) -> bool:
        words = _words(text)
        return not any(run in known for size, known in self._runs.items() for run in _runs(words, size))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _runs(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + size]) for at in range(len(words) - size + 1)] if size else []
