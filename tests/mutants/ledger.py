"""Ledger: mutants that were red before, with the very sources of now, so that a run that was ended goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from runtime.source_digest import sources_digest
from tests.mutants.mutation import Mutation
from tests.mutants.tree import PACKAGES, ROOT
from tests.mutants.trial import RED, Verdict

KINDS = ("py", "json", "jsonl", "yaml")
FILE = ROOT / ".pytest_cache" / "mutants.jsonl"


class Ledger:
    """A line for each mutant that was red. Comments and docstrings aside, another source makes all of them void.

    Args:
        file: of the lines; made when there is one to write.
        sources: digest of everything that a trial runs; None: of this repository.
    """

    def __init__(self, file: Path = FILE, sources: str | None = None) -> None:
        self._file = file
        self._sources = sources or sources_digest([f"{package}/**/*.{kind}" for package in PACKAGES for kind in KINDS], ROOT)

    def known(self, mutations: Iterable[Mutation]) -> dict[str, Verdict]:
        """Verdicts of those that need not be shown again, by name."""
        seconds: dict[str, float] = {}
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                seconds[entry["mutant"]] = entry["seconds"]
        return {
            mutation.name: Verdict(mutation, RED, seconds[key])
            for mutation in mutations
            if (key := self._key(mutation)) in seconds
        }

    def note(self, verdict: Verdict) -> None:
        """Keep it, if it is red."""
        if verdict.killed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                print(json.dumps({"mutant": self._key(verdict.mutation), "seconds": verdict.seconds}), file=file, flush=True)

    def _key(self, mutation: Mutation) -> str:
        """Of a mutant in these sources."""
        return hashlib.sha256(f"{self._sources} {mutation}".encode()).hexdigest()[:32]
