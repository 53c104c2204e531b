"""`python -m tests.mutants`: apply every mutation, or some, and fail unless each is killed by the test that it names.

A run that was ended goes on where it was, as long as the sources stay (tests/mutants/ledger.py).
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Sequence

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.ledger import Ledger
from tests.mutants.mutation import Mutation, SourceMovedError
from tests.mutants.table import page
from tests.mutants.tree import ROOT
from tests.mutants.trial import NotGreenError, Verdict, run_all

PAGE = ROOT / "docs" / "mutants.md"


class Progress:
    """What is said while trials run, and kept of them. Several threads call it."""

    def __init__(self, total: int, ledger: Ledger) -> None:
        self._total, self._ledger = total, ledger
        self._done, self._lock = 0, threading.Lock()
        self._began: float | None = None

    def green(self, done: int, total: int) -> None:
        """Tests of one worker that were run without a mutation."""
        with self._lock:
            print(f"without a mutation: {done} of a worker's {total} tests are green", flush=True)

    def verdict(self, verdict: Verdict) -> None:
        with self._lock:
            now = time.monotonic()
            self._began = now - verdict.seconds if self._began is None else self._began
            self._done += 1
            minutes = (now - self._began) / self._done * (self._total - self._done) / 60
            print(f"[{self._done}/{self._total}, {minutes:.0f} min left] {verdict}", flush=True)
            self._ledger.note(verdict)


def in_order(mutations: Sequence[Mutation], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """One verdict of each mutation, as the catalogue has them."""
    by_name = {verdict.mutation.name: verdict for verdict in verdicts}
    return [by_name[mutation.name] for mutation in mutations]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all red; 1: one is not, or a named test is not green by itself; 2: a mutation does not fit its source; 130:
    interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutation; may be given several times")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutations drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--workers", type=int, default=2, help="trials at a time (2)")
    parser.add_argument("--anew", action="store_true", help="also those that were red before, with the same sources")
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
    ledger = Ledger()
    known = {} if options.anew else ledger.known(chosen)
    if known:
        print(f"{len(known)} of {len(chosen)} were red before, with these sources (--anew runs them too)", flush=True)
    left = [mutation for mutation in chosen if mutation.name not in known]
    began, progress = time.monotonic(), Progress(len(left), ledger)
    try:
        found = run_all(left, workers=options.workers, report=progress.verdict, green=progress.green) if left else []
    except SourceMovedError as error:
        print(error, file=sys.stderr)
        return 2
    except NotGreenError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here as long as the sources stay", file=sys.stderr)
        return 130
    verdicts = in_order(chosen, [*known.values(), *found])
    alive = [verdict.mutation.name for verdict in verdicts if not verdict.killed]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} red, {len(found)} of them tried in {time.monotonic() - began:.0f} s")
    if len(chosen) == len(MUTATIONS):
        PAGE.write_text(page(verdicts))
    if alive:
        print(f"not red: {', '.join(alive)}", file=sys.stderr)
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
