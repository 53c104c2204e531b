"""The `draftgraph` command, also as `python -m runtime`: everything is imported under the eyes of Ctrl-C."""

from __future__ import annotations

import sys

from runtime.interrupts import repeated_interrupts

INTERRUPTED = 130


def main() -> None:
    """Importing the commands takes most of the first second."""
    try:
        with repeated_interrupts():
            from runtime.cli import main as command

            command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
