"""The heap of a loaded engine is set aside, and what becomes garbage of it is collected at the next call.

In processes of their own: among the objects of a hundred tests a collection takes a second.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from runtime import cli_session
from runtime.config import load_config
from tests.conftest import ROOT

NODE = """
import gc, weakref
from runtime.settled_heap import settle_heap

class Node:
    def __init__(self):
        self.itself = self
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", NODE + textwrap.dedent(code)], cwd=ROOT, check=True, timeout=60)


def test_what_lives_is_no_work_of_later_collections() -> None:
    run("""
        node = Node()
        settle_heap()
        assert gc.get_freeze_count() > 0
        assert not any(found is node for generation in range(3) for found in gc.get_objects(generation))
        later = Node()
        assert any(found is later for found in gc.get_objects())
    """)


def test_cycles_that_were_set_aside_go_at_the_next_call() -> None:
    run("""
        node = Node()
        gone = weakref.ref(node)
        settle_heap()
        del node
        gc.collect()
        assert gone() is not None
        settle_heap()
        assert gone() is None
    """)


def test_commands_do_it_once_their_engine_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(cli_session, "start_logging", lambda quiet: None)
    monkeypatch.setattr("runtime.engine.Engine", SimpleNamespace(from_config=lambda *args, **options: done.append("loaded")))
    monkeypatch.setattr(cli_session, "settle_heap", lambda: done.append("settled"))
    cli_session.open_engine(load_config({"model": {"source": "x"}}), quiet=True)
    assert done == ["loaded", "settled"]
