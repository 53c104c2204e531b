"""`python -m tests.mutants`: apply every mutation, or some, and fail unless each is killed by the test that it names."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.mutation import SourceMovedError
from tests.mutants.table import page
from tests.mutants.tree import ROOT
from tests.mutants.trial import NotGreenError, run_all

PAGE = ROOT / "docs" / "mutants.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all red; 1: one is not, or a named test is not green by itself; 2: a mutation does not fit its source."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutation; may be given several times")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutations drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--workers", type=int, default=2, help="trials at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the catalogue and end")
    options = parser.parse_args(arguments)
    chosen = list(MUTATIONS)
    if options.only:
        unknown = set(options.only) - {mutation.name for mutation in MUTATIONS}
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; --list prints the names")
        chosen = [mutation for mutation in MUTATIONS if mutation.name in options.only]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name:40} {mutation.hazard:8} {mutation.killer}")
        return 0
    began = time.monotonic()
    try:
        verdicts = run_all(chosen, workers=options.workers, report=lambda verdict: print(verdict, flush=True))
    except SourceMovedError as error:
        print(error, file=sys.stderr)
        return 2
    except NotGreenError as error:
        print(error, file=sys.stderr)
        return 1
    alive = [verdict.mutation.name for verdict in verdicts if not verdict.killed]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} red in {time.monotonic() - began:.0f} s")
    if len(chosen) == len(MUTATIONS):
        PAGE.write_text(page(verdicts))
    if alive:
        print(f"not red: {', '.join(alive)}", file=sys.stderr)
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
