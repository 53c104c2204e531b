"""How many threads a matrix product of the CPU device uses.

The threads of one product wait for each other: on a core that somebody else needs, two threads take many times as long as one. Seen
on two cores that others used too: 2 to 5 tokens a second with two threads, 24 with one. So `auto` leaves busy cores alone.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Literal

_SAMPLES = 9
_PAUSE_SECONDS = 0.01


def resolve_threads(wanted: int | Literal["auto"]) -> tuple[int, str]:
    """Threads for `runner.cpu_threads = wanted`, and why: the text that `draftgraph info` prints."""
    if wanted != "auto":
        cores = usable_cores()
        if wanted > cores:
            return cores, f"{wanted} asked for, limited to the cores that this process may run on"
        return wanted, "asked for"
    cores, busy = usable_cores(), busy_elsewhere()
    return max(1, cores - busy), f"auto: {cores} cores, {busy} of them busy when the engine was opened"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_elsewhere() -> int:
    """Runnable threads of this machine beside our own, median of a tenth of a second; 0 where the kernel does not say."""
    source = Path("/proc/loadavg")
    try:
        samples = []
        for _ in range(_SAMPLES):
            running = int(source.read_text(encoding="ascii").split()[3].split("/")[0])
            samples.append(running - 1)
            time.sleep(_PAUSE_SECONDS)
    except (OSError, ValueError, IndexError):
        return 0
    return max(0, int(statistics.median(samples)))
