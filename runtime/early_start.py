"""Which launches may start before the work ahead of them on their stream has ended (kernels/lang_overlap.py)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol


class StreamWork(Protocol):
    """Attributes:
    computes: a kernel, or a library's product: copies and fills let nothing start early.
    writes: the arrays it stores to.
    """

    @property
    def computes(self) -> bool: ...

    @property
    def writes(self) -> tuple[Hashable, ...]: ...


def may_start_early(early: frozenset[Hashable], before: Sequence[StreamWork]) -> bool:
    """May a kernel that reads `early` before it waits start before the last work of `before` has ended?

    before: the work that directly precedes it on its stream, newest last, no more than two; empty where it depends on more than
        that (an event, the start of a graph).

    The last two may still run then, the second last if the last is a library's kernel, which may let others start before it has
    waited itself. Everything older has ended: our kernels let the next one start behind their own wait.
    """
    if not before or not before[-1].computes:
        return False
    return not any(array in early for work in before for array in work.writes)
