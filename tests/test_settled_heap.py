"""The heap of a loaded engine is set aside, and what becomes garbage of it is collected at the next call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from runtime.settled_heap import settle_heap


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _heap_of_other_tests() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_lives_is_no_work_of_later_collections() -> None:
    node = Node()
    settle_heap()
    assert gc.get_freeze_count() > 0
    assert not any(found is node for generation in range(3) for found in gc.get_objects(generation))
    later = Node()
    assert any(found is later for found in gc.get_objects())


def test_cycles_that_were_set_aside_go_at_the_next_call() -> None:
    node = Node()
    gone = weakref.ref(node)
    settle_heap()
    del node
    gc.collect()
    assert gone() is not None
    settle_heap()
    assert gone() is None
