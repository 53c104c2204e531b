"""How fast a GPU copies its own memory: the roof under which a step that streams weights can be."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

BYTES = 1 << 30
LEAST_BYTES = 1 << 28
"""Far above any L2 cache."""
REPEATS = 7


def copy_bandwidth(device: Any) -> float | None:
    """Bytes read and written in a second by copies of up to 1 GiB inside the device, median of 7; None where less than 256 MiB fits
    twice. The device has a clock (`has_clock`)."""
    nbytes = min(BYTES, int(device.free_bytes() * 0.4))
    if nbytes < LEAST_BYTES:
        return None
    source, target = (device.array(f"copy_bandwidth_{name}", (nbytes,), np.uint8) for name in ("from", "to"))
    try:
        stream = device.stream("copy_bandwidth")
        begin, end = (device.event(f"copy_bandwidth_{name}", timing=True) for name in ("begin", "end"))
        stream.fill(source, 1)
        times = []
        for _ in range(1 + REPEATS):
            stream.record(begin)
            stream.copy(target, source)
            stream.record(end)
            end.synchronize()
            times.append(end.milliseconds_since(begin))
    finally:
        device.free(source)
        device.free(target)
    return 2 * nbytes / (statistics.median(times[1:]) / 1e3)
