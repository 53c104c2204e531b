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
            raise SourceMovedError(
                f"{self.file}: the text to replace occurs {found} times, must be once; bring tests/mutants up to date:\n{self.old}"
            )
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Attributes:
        name: in lower case, with dashes.
        hazard: the entry of the hazard list: 9a-1 .. 9e-63, defects of the system that this project re-creates, or B1 .. B47,
            reported by users of other engines, or D1 .. D11, block drafters (DFlash), checkpoints and mistakes.
        edits: usually one.
        test: pytest node id that must go red, all parameters of a test unless one is named in brackets; or an axis of `gate`.
        text: why reading the generated text alone would not have shown it.
        expects: regular expression that the failure must contain: a mutant must go red for its own reason.
        gate: G1 or G2 where `test` is one of its axes; "" where it is a node id.
        silent: a mutation that changes no token: with a gate, the token identity of G1 must hold while the axis does not.
    """

    name: str
    hazard: str
    edits: tuple[Edit, ...]
    test: str
    text: str
    expects: str = "AssertionError|assert "
    gate: str = ""
    silent: bool = False

    @property
    def killer(self) -> str:
        """What must go red, for people."""
        return f"{self.gate}: {self.test}" if self.gate else self.test.removeprefix("tests/")

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


def gated(
    name: str,
    hazard: str,
    edits: Edit | tuple[Edit, ...],
    *,
    gate: str,
    axis: str,
    text: str,
    expects: str = "",
    silent: bool = False,
) -> Mutation:
    """A mutation that an axis of a gate must show. silent: while every token stays as it is."""
    return Mutation(name, hazard, (edits,) if isinstance(edits, Edit) else edits, axis, text, expects, gate, silent)
