"""`python -m tests.sanitize`: racecheck of every kernel of a speculative step that shares memory, each in a process of its own.

Exit code 1: a hazard, a run without an end, or a race that was planted in a copy of the sources and not reported.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.sanitize.race_checks import RaceChecks, say
from tests.sanitize.sanitizer import Sanitizer


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="KERNEL", help="this kernel; may be given several times")
    cores = os.cpu_count() or 8
    parser.add_argument("--workers", type=int, default=max(4, min(24, cores // 2)), help="processes at a time (half the cores)")
    parser.add_argument("--limit", type=float, default=100, metavar="S", help="seconds of a process (100)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keeps what the tool printed of each kernel")
    options = parser.parse_args(arguments)
    racecheck = Sanitizer.found("racecheck")
    if racecheck is None:
        say("make sanitize: no compute-sanitizer on this machine; it comes with the CUDA toolkit")
        return 1
    checked = RaceChecks(racecheck, limit_s=options.limit, logs=options.logs).run(only=options.only, workers=options.workers)
    if checked is None:
        return 1
    print(checked, flush=True)
    return 0 if checked.passed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does: ends what was started
    sys.exit(main())
