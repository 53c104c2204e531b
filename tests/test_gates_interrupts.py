"""Ctrl-C while several processes play the cases of a gate: a terminal sends it to all of them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import Any

import pytest

from runtime.gates import play
from runtime.gates.play import play_apart
from tests.cli_process import pythons_own_handler

_ctrl_c = pytest.fixture(autouse=True)(pythons_own_handler)


def is_deaf(gate: str, case: Any) -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def play_long(gate: str, case: Any) -> bool:
    time.sleep(0 if case == 0 else 60)
    return True


def test_processes_leave_an_interrupt_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "_play_here", is_deaf)
    cases: list[Any] = [0, 1]
    assert list(play_apart("G1", cases, 2)) == [True, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "_play_here", play_long)
    monkeypatch.setattr(play, "CASES_AT_A_TIME", 1)
    cases: list[Any] = [0, 1, 2]
    played = play_apart("G1", cases, 2)
    assert next(played)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        played.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 30
    assert not multiprocessing.active_children()
