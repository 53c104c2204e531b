"""`python -m tests.vectors FILE.json [FILE.json ...] [--executor cpu|simulator|cuda] [--allow-unsupported]`

Prints pass, FAIL or unsupported for each id. Exit code 0: all passed; 1: some did not (an unsupported id counts, unless allowed);
2: a file or the executor cannot be used.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description="Run files of vectors.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--executor", choices=("cpu", "simulator", "cuda"), default="cpu")
    parser.add_argument("--allow-unsupported", action="store_true", help="ids whose op has no product yet do not fail the run")
    arguments = parser.parse_args()
    # Numba reads this once, at import: it must be settled before anything of the product is imported.
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1" if arguments.executor == "simulator" else "0"

    from tests.vectors.adapter import UnusableInputError, open_executor, read_vectors, run_vector

    try:
        run = open_executor(arguments.executor)
        vectors = [vector for path in arguments.files for vector in read_vectors(path)]
    except UnusableInputError as error:
        print(f"tests.vectors: {error}", file=sys.stderr)
        return 2
    outcomes = [run_vector(vector, run) for vector in vectors]
    for outcome in outcomes:
        print(outcome)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in ("pass", "FAIL", "unsupported")}
    print(", ".join(f"{count} {status}" for status, count in counts.items()) + f" ({arguments.executor})")
    return 1 if counts["FAIL"] or (counts["unsupported"] and not arguments.allow_unsupported) else 0


if __name__ == "__main__":
    sys.exit(main())
