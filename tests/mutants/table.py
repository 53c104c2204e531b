"""docs/mutants.md: what every mutation is, which test killed it, and when that was last shown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.hazards import WITHOUT_MUTANT
from tests.mutants.trial import Verdict

_HEAD = """# Mutants

Each row is a small defect that somebody could put into draftgraph, the hazard that it stands for, and the test that must fail
because of it. `make mutants` applies them one at a time to a copy of the sources, runs the named test there, and fails if a test
stays green, fails for another reason than the one expected, or cannot run. It has written this page; do not edit it.

Hazards 9a to 9e are defects of the asynchronous speculative runner that this project re-creates, B1 to B47 were reported by users
of other engines. A gate is an axis of `draftgraph gates`, or a test. "Why text does not show it" is why comparing generated text
would not have been enough.

"""


def page(verdicts: Sequence[Verdict]) -> str:
    """The page, rows in the order of the catalogue."""
    killed = sum(verdict.killed for verdict in verdicts)
    lines = [
        f"{len(verdicts)} mutants, {killed} red, {len(verdicts) - killed} not.\n",
        "| Mutant | Hazard | Gate | Verdict | Seconds | Why text does not show it |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        mutation = verdict.mutation
        cells = (
            mutation.name,
            mutation.hazard,
            f"`{mutation.killer}`",
            verdict.outcome,
            f"{verdict.seconds:.1f}",
            f"{mutation.text}{' (checked: G1 finds every token in place)' if mutation.silent else ''}",
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["\n## Hazards without a mutant\n", "| Hazard | Why |", "|---|---|"]
    lines += [f"| {hazard} | {reason} |" for hazard, reason in WITHOUT_MUTANT.items()]
    return _HEAD + "\n".join(lines) + "\n"
