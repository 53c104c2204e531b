"""What a device was asked to do, counted on the host: the evidence behind "no synchronisation of the compute stream"."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CopyKind: TypeAlias = Literal["h2d", "d2h", "d2d", "h2h"]

COPY_KINDS: dict[tuple[bool, bool], CopyKind] = {
    (True, False): "h2d",
    (False, True): "d2h",
    (False, False): "d2d",
    (True, True): "h2h",
}
"""By where a copy comes from and where it goes: is it page-locked host memory?"""


@dataclass
class DeviceCounters:
    """Plain counts since the device was opened. Take a difference of two `copy()`s to count one step.

    Attributes:
        launches: kernels, matrix products and fills enqueued one by one; those inside a replayed graph are not counted again.
        graph_launches: replays.
        copies, copied_bytes: copies enqueued, those of replayed graphs included.
        copies_by_kind: the same copies by kind: h2d, d2h, d2d, h2h.
        stream_synchronizes: host waits for a whole stream; synchronizes_by_stream splits them by the stream's name.
        event_synchronizes, event_queries: host waits for an event, and looks at one.
        device_synchronizes: host waits for everything.
        transfers: blocking download() and upload() calls, which also wait for everything.
    """

    launches: int = 0
    graph_launches: int = 0
    copies: int = 0
    copied_bytes: int = 0
    stream_synchronizes: int = 0
    event_synchronizes: int = 0
    event_queries: int = 0
    device_synchronizes: int = 0
    transfers: int = 0
    copies_by_kind: Counter[str] = field(default_factory=Counter)
    synchronizes_by_stream: Counter[str] = field(default_factory=Counter)

    def copy(self) -> DeviceCounters:
        values = dict(vars(self))
        values["copies_by_kind"] = Counter(self.copies_by_kind)
        values["synchronizes_by_stream"] = Counter(self.synchronizes_by_stream)
        return DeviceCounters(**values)

    def since(self, before: DeviceCounters) -> DeviceCounters:
        """What was counted after `before` was copied."""
        return DeviceCounters(**{name: value - getattr(before, name) for name, value in vars(self).items()})
