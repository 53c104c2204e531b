"""What mirrored buffers were asked to move and to refuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass
class MirrorCounters:
    """Of one buffer, one pack, or a whole table. Bytes are those of queued copies: a shared buffer has none."""

    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    stale_reads_refused: int = 0

    @classmethod
    def total(cls, parts: Iterable[MirrorCounters]) -> MirrorCounters:
        parts = list(parts)
        return cls(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)})
