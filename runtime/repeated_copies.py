"""RepeatedCopies: copies that come step after step between the same places, checked and bound at the first of them."""

from __future__ import annotations

from collections.abc import Callable

from graphs.launch import Array
from runtime.device import Stream


class RepeatedCopies:
    """Of one ring. Places are told apart by identity: pass the same two arrays, not views that are cut anew."""

    def __init__(self) -> None:
        # Beside each call the arrays themselves, so that no other array ever has their identity.
        self._bound: dict[tuple[int, int, int], tuple[Callable[[], None], Stream, Array, Array]] = {}

    def queue(self, stream: Stream, dst: Array, src: Array) -> None:
        """Queue dst[...] = src on `stream`. Errors as of Stream.copy."""
        key = id(stream), id(dst), id(src)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = stream.prepare_copy(dst, src), stream, dst, src
        bound[0]()
