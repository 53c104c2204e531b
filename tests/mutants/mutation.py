"""Mutation: one small defect in the product, and the test that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class SourceMovedError(LookupError):
    """The text that a mutation replaces is not in its file exactly once: the product has changed, the mutation must follow."""


@dataclass(frozen=True)
class Edit:
    """`old`, which stands exactly once in `file` (relative to the root of the tree), becomes `new`."""

    file: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Raises SourceMovedError."""
        found = source.count(self.old)
        if found != 1:
            raise SourceMovedError(f"{self.file}: the text to replace occurs {found} times, must be once:\n{self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Attributes:
        name: in lower case, with dashes.
        hazard: the entry of the hazard list: 9a-1 .. 9e-63 (defects of the system that this project re-creates) or B1 .. B47 (reported
            by users of other engines).
        edits: usually one.
        test: pytest node id that must go red; all parameters of a test unless one is named in brackets.
        text: why reading the generated text alone would not have shown it.
        expects: regular expression that the failure must contain: a mutant must go red for its own reason.
        gate: G1 or G2 where the test is a case of that gate.
    """

    name: str
    hazard: str
    edits: tuple[Edit, ...]
    test: str
    text: str
    expects: str = "AssertionError|assert "
    gate: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    @property
    def recompiles(self) -> bool:
        """A kernel source changes, so that kernels are compiled anew: seconds instead of milliseconds."""
        return any(file.startswith("kernels/") for file in self.files)

    def apply(self, tree: Path) -> dict[str, str]:
        """The mutated sources by file, from the sources in `tree`, which stays as it is. Raises SourceMovedError."""
        sources: dict[str, str] = {}
        for edit in self.edits:
            before = sources.get(edit.file)
            sources[edit.file] = edit.apply((tree / edit.file).read_text() if before is None else before)
        return sources


def mutation(
    name: str,
    hazard: str,
    file: str,
    old: str,
    new: str,
    *,
    test: str,
    text: str,
    expects: str = Mutation.expects,
    gate: str = "",
) -> Mutation:
    """A mutation of one edit."""
    return Mutation(name, hazard, (Edit(file, old, new),), test, text, expects, gate)
