"""The mirror table as text, for `draftgraph info` and for whoever looks into a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runtime.mirror import MirroredBuffer

if TYPE_CHECKING:
    from runtime.mirror_table import MirrorTable

_Row = tuple[str, ...]
_HEADER: _Row = ("buffer", "type", "truth", "state", "host", "device", "graphs", "bytes")


def describe(table: MirrorTable) -> str:
    """Policy, one line a buffer (its whole state is str(buffer)), packs and rings, totals."""
    rows = [_HEADER, *_rows(table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"mirrors: {table.policy}; {table.steps_in_flight} steps in flight; poison {'on' if table.poison else 'off'}"]
    for *cells, nbytes in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        lines.append("  " + "  ".join(padded) + "  " + nbytes.rjust(widths[-1]))
    counters = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in vars(table.counters).items())
    return "\n".join([*lines, f"  total {table.nbytes:,} bytes; {counters}"])


def _rows(table: MirrorTable) -> Iterator[_Row]:
    for buffer in table.buffers.values():
        yield _row(buffer.name, buffer, f"{buffer.memory.nbytes:,}")
    for name, pack in table.packs.items():
        yield (name, f"int32[{pack.array.shape[0]}]", "pack", f"ring of {pack.ring.depth}", "", "", "", f"{pack.nbytes:,}")
        for field in pack.fields.values():
            yield _row(f"  {field.name}", field, "")
    for name, ring in table.rings.items():
        kind = f"{ring.array.dtype}{list(ring.array.shape[1:])}"
        yield (name, kind, "outcomes", f"ring of {ring.depth}", "", "", "", f"{ring.nbytes:,}")


def _row(name: str, buffer: MirroredBuffer, nbytes: str) -> _Row:
    kind = f"{buffer.dtype}{list(buffer.shape)}"
    versions = f"v{buffer.host_version}", f"v{buffer.device_version}"
    return (name, kind, buffer.truth.value, buffer.state, *versions, str(len(buffer.pinned_by)), nbytes)
