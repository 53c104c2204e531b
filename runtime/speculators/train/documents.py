"""Documents: what the target has written, kept on disk batch by batch so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch

from runtime.errors import ConfigError

Ids = npt.NDArray[np.int32]

LOOP_LENGTH, LOOP_TIMES = 12, 3  # an answer is cut where a run of so many tokens has stood so many times before


class Document(NamedTuple):
    """A prompt as it is served, template and all, and the target's answer with its stop token."""

    prompt: Ids
    answer: Ids


class DocumentStore:
    """The batches of a folder: `batch-00007.npz` each, and `progress.json` with what is known of all of them.

    seconds that they took, prompts that were refused (too near to a held-out one), documents by kind of prompt.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError: what is there cannot be read."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.documents: list[Document] = []
        self.batches, self.num_answer_tokens = 0, 0
        self.seconds, self.refused, self.kinds = 0.0, 0, Counter[str]()
        if (folder / "progress.json").exists():
            try:
                self._read()
            except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
                raise ConfigError(f"{folder}: what was written is corrupt: {error}; remove the folder to write it anew") from error

    def _read(self) -> None:
        values = json.loads((self._folder / "progress.json").read_text("utf-8"))
        self.batches, self.seconds, self.refused = values["batches"], values["seconds"], values["refused"]
        self.kinds = Counter(values["kinds"])
        for number in range(self.batches):
            with np.load(self._path(number)) as held:
                prompts = np.split(held["prompts"], np.cumsum(held["prompt_lengths"])[:-1])
                answers = np.split(held["answers"], np.cumsum(held["answer_lengths"])[:-1])
            self._take([Document(*pair) for pair in zip(prompts, answers, strict=True)])

    def add(self, kind: str, documents: Sequence[Document], seconds: float, refused: int) -> None:
        """Keep one batch that took `seconds` and for which `refused` prompts were dropped."""
        np.savez(
            self._path(self.batches),
            prompts=np.concatenate([document.prompt for document in documents]),
            prompt_lengths=[len(document.prompt) for document in documents],
            answers=np.concatenate([document.answer for document in documents]),
            answer_lengths=[len(document.answer) for document in documents],
        )
        self._take(documents)
        self.batches, self.seconds, self.refused = self.batches + 1, self.seconds + seconds, self.refused + refused
        self.kinds[kind] += len(documents)
        values = {"batches": self.batches, "seconds": self.seconds, "refused": self.refused, "kinds": dict(self.kinds)}
        # Written beside and moved, so that an interruption leaves the old file or the new one.
        beside = self._folder / "progress.json.new"
        beside.write_text(json.dumps(values), "utf-8")
        beside.replace(self._folder / "progress.json")

    def _take(self, documents: Sequence[Document]) -> None:
        self.documents += documents
        self.num_answer_tokens += sum(len(document.answer) for document in documents)

    def _path(self, number: int) -> Path:
        return self._folder / f"batch-{number:05d}.npz"


def cut_loops(documents: Sequence[Document], device: torch.device, chunk: int = 512) -> tuple[list[Document], int]:
    """(documents, how many were cut): an answer ends where it has begun to repeat itself, or loops would be most of the loss."""
    kept, cut = list(documents), 0
    for first in range(0, len(kept), chunk):
        part = kept[first : first + chunk]
        longest = max(len(document.answer) for document in part)
        if longest < LOOP_LENGTH:
            continue
        tokens = np.full((len(part), longest), -1, np.int64)
        for index, document in enumerate(part):
            tokens[index, : len(document.answer)] = document.answer
        ids = torch.from_numpy(tokens).to(device)
        windows = longest - LOOP_LENGTH + 1
        hashes = torch.zeros(len(part), windows, dtype=torch.long, device=device)
        for offset in range(LOOP_LENGTH):  # a polynomial hash that wraps
            hashes = hashes * 6364136223846793005 + ids[:, offset : offset + windows] + 1442695
        before = (hashes[:, :, None] == hashes[:, None, :]).tril(-1).sum(-1) >= LOOP_TIMES
        ends = torch.where(before.any(1), before.int().argmax(1) + LOOP_LENGTH, longest).cpu().numpy()
        for index, document in enumerate(part):
            if ends[index] < len(document.answer):
                kept[first + index] = Document(document.prompt, document.answer[: ends[index]])
                cut += 1
    return kept, cut
