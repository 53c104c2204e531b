"""Prompts of training: composed from phrases, written by the target itself, or tasks over what it wrote before.

None of them may be a validation prompt or share a run of words with one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from runtime.chat import ChatTemplate
from runtime.errors import ConfigError, PromptError
from runtime.speculators.train.documents import Document
from runtime.speculators.train.held_out import HeldOut
from runtime.speculators.train.settings import DataSettings
from runtime.tokenizer import Tokenizer

PLACE = "\ue000"  # a private character: stands where the template puts what the user says
PASSAGE_TOKENS = (16, 110)  # of an answer that becomes the passage of a task
ONE_SENTENCE_SHARE = 0.3  # of the passages
OPENERS_SHARE = 0.5  # of the turns that the target completes; the others begin as composed prompts do
NUMBERS = {"num": (3, 10), "a": (2, 60), "b": (2, 12), "c": (20, 900)}

Write = Callable[[Sequence[Sequence[int]]], list[tuple[Any, bool]]]
"""Continue token ids with the target: (ids with the stop token, did it stop) of each."""


class ChatFrame:
    """The model's chat template, cut where the user's words go."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._known: dict[str | None, tuple[str, str]] = {}
        _, tail = self._parts(None)
        first = self.encode(tail)[:1]
        self.stop_ids = tuple(dict.fromkeys([*tokenizer.eos_token_ids, *first]))  # where a user's turn ends

    def _cut(self, system: str | None) -> tuple[str, str]:
        if self._template is None:
            return self._tokenizer.token_text(self._tokenizer.bos_token_id), ""
        turns = [{"role": "system", "content": system}] if system is not None else []
        head, _, tail = self._template.render([*turns, {"role": "user", "content": PLACE}]).partition(PLACE)
        return head, tail

    def head(self, system: str | None) -> str:
        return self._parts(system)[0]

    def _parts(self, system: str | None) -> tuple[str, str]:
        """As _cut, each system turn rendered once."""
        if system not in self._known:
            self._known[system] = self._cut(system)
        return self._known[system]

    def prompt(self, text: str, system: str | None = None) -> list[int]:
        head, tail = self._parts(system)
        return self.encode(head + text + tail)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)


class PromptMaker:
    """Makes batches of prompts as token ids, by kind (settings.Sources).

    Args: write, the target's continuation of a user's turn; own, texts of `data.prompts`.
    """

    def __init__(self, frame: ChatFrame, settings: DataSettings, held_out: HeldOut, write: Write, own: Sequence[str] = ()) -> None:
        self._frame, self._settings, self._held_out, self._write, self._own = frame, settings, held_out, write, list(own)
        phrases = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text("utf-8"))
        self._fillers: dict[str, list[str]] = phrases["fillers"]
        self._templates: list[str] = phrases["templates"]
        self._openers: list[str] = phrases["openers"]
        self._tasks: list[list[str]] = phrases["passage_tasks"]
        self._typo_tasks: list[str] = phrases["typo_tasks"]
        self._systems: list[str] = phrases["systems"]
        self._seen: set[str] = set()
        self._debt: dict[str, float] = {}
        self._waiting: dict[str, list[list[int]]] = {}
        self.refused = 0  # prompts that came too near to a held-out one
        self._check_systems()

    def _check_systems(self) -> None:
        """Some templates know no system turn: prompts then have none of their own."""
        try:
            self._frame.head(self._systems[0])
        except PromptError:
            self._systems = []

    def batch(self, count: int, documents: Sequence[Document], batch_number: int) -> tuple[str, list[list[int]]]:
        """(kind, prompts): kinds take turns by their weights. Deterministic in `batch_number` but for what the target writes."""
        rng = random.Random(f"{self._settings.seed}/{batch_number}")
        weights = {kind: weight for kind, weight in self._settings.sources.model_dump().items() if weight}
        if not self._own:
            weights.pop("file", None)
        if not documents:
            weights.pop("passage", None)
        if not weights:
            raise ConfigError("data.sources: every weight is 0; give at least one of them some")
        total = sum(weights.values())
        for kind, weight in weights.items():
            self._debt[kind] = self._debt.get(kind, 0.0) + weight / total
        kind = max(weights, key=lambda name: self._debt[name])
        self._debt[kind] -= 1.0
        waiting = self._waiting.setdefault(kind, [])
        for _ in range(8):
            if len(waiting) >= count:
                break
            waiting += self._make(kind, count, documents, rng)
        prompts, self._waiting[kind] = waiting[:count], waiting[count:]
        if not prompts:
            raise ConfigError(
                f"data.sources.{kind}: the target wrote no usable prompt; raise data.max_prompt_tokens, or set this weight to 0"
            )
        return kind, prompts

    def _make(self, kind: str, count: int, documents: Sequence[Document], rng: random.Random) -> list[list[int]]:
        if kind == "template":
            texts: list[str] = [self.composed(rng) for _ in range(count)]
        elif kind == "passage":
            texts = [self._passage(documents, rng) for _ in range(count)]
        elif kind == "file":
            texts = [rng.choice(self._own) for _ in range(count)]
        else:
            texts = self._written([self._opener(rng) if kind == "seeded" else "" for _ in range(count)], rng)
        prompts = []
        for text in texts:
            if len(text) < 3 or (kind != "file" and text in self._seen):
                continue
            if not self._held_out.admits(text):
                self.refused += 1
                continue
            self._seen.add(text)
            prompt = self._frame.prompt(text, self._system(rng))
            if len(prompt) <= self._settings.max_prompt_tokens:
                prompts.append(prompt)
        return prompts

    def _system(self, rng: random.Random) -> str | None:
        return rng.choice(self._systems) if self._systems and rng.random() < self._settings.system_share else None

    def _written(self, openers: Sequence[str], rng: random.Random) -> list[str]:
        """The user's turns that the target writes after the template's head, with a beginning or without."""
        heads = [(opener, self._frame.encode(self._frame.head(self._system(rng)) + opener)) for opener in openers]
        heads = [(opener, ids) for opener, ids in heads if len(ids) <= self._settings.max_prompt_tokens]
        if not heads:
            return []
        texts = []
        for (opener, _), (ids, ended) in zip(heads, self._write([ids for _, ids in heads]), strict=True):
            if ended and len(ids) > 1:
                texts.append((opener + self._frame.decode(ids[:-1])).strip())
        return texts

    def _opener(self, rng: random.Random) -> str:
        """How a user's turn begins that the target completes: an opener, or the first words of a composed prompt."""
        if rng.random() < OPENERS_SHARE:
            return rng.choice(self._openers)
        words = self.composed(rng).split(" ")
        return " ".join(words[: rng.randint(2, max(2, len(words) - 1))])

    def composed(self, rng: random.Random) -> str:
        """A template with its braces filled."""
        return self._filled(rng.choice(self._templates), rng)

    def _filled(self, template: str, rng: random.Random) -> str:
        """`{problem_c}` is a filler with a capital, and `{name_1}` the same one each time."""
        chosen: dict[str, str] = {}

        def fill(match: re.Match[str]) -> str:
            name, _, mark = match[1].partition("_")
            text = str(rng.randint(*NUMBERS[name])) if name in NUMBERS else rng.choice(self._fillers[name])
            if mark == "1":
                return chosen.setdefault(name, text)
            return text[0].upper() + text[1:] if mark == "c" else text

        return re.sub(r"\{(\w+)\}", fill, template)

    def _passage(self, documents: Sequence[Document], rng: random.Random) -> str:
        """A task over the beginning of an earlier answer: whole sentences where it has them, now and then a single one."""
        answer = rng.choice(documents).answer
        text = self._frame.decode(answer[: rng.randint(*PASSAGE_TOKENS)]).strip()
        end = max(text.rfind(mark) for mark in ".!?")
        text = text[: end + 1] if end > 20 else text
        if rng.random() < ONE_SENTENCE_SHARE:
            text = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
        if rng.random() < 0.15:
            return rng.choice(self._typo_tasks) + with_typos(text, rng)
        before, after = rng.choice(self._tasks)
        return self._filled(before, rng) + text + after


def with_typos(text: str, rng: random.Random, rate: float = 0.08) -> str:
    """Letters swapped, dropped and doubled, at about `rate` of the words' letters."""
    out, at = [], 0
    while at < len(text):
        letter = text[at]
        if letter.isalpha() and rng.random() < rate:
            kind = rng.randrange(3)
            if kind == 0 and at + 1 < len(text):
                out += [text[at + 1], letter]
                at += 2
                continue
            out += [] if kind == 1 else [letter, letter]
        else:
            out.append(letter)
        at += 1
    return "".join(out)
