"""Ctrl-C: lost where no exception can go on and raised again behind it, and pressed while the commands are still imported."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from typing import Any

import pytest

from runtime.__main__ import main
from runtime.interrupts import noted_interrupts, repeated_interrupts
from tests.cli_process import pythons_own_handler

_ctrl_c = pytest.fixture(autouse=True)(pythons_own_handler)


class Destroyed:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def in_a_destructor() -> None:
    Destroyed()


def in_a_callback() -> None:
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()


def work_on() -> None:
    """What a program does that has not heard of the interrupt."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("place", [in_a_destructor, in_a_callback])
@pytest.mark.parametrize("watched", [repeated_interrupts, noted_interrupts])
def test_an_interrupt_that_was_lost_comes_again(capfd: pytest.CaptureFixture[str], place: Any, watched: Any) -> None:
    def command() -> None:
        with watched():
            place()
            work_on()

    with pytest.raises(KeyboardInterrupt):
        command()
    assert capfd.readouterr().err == ""


def test_other_errors_that_nobody_can_catch_are_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.exc_type))
    with repeated_interrupts():
        ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()  # type: ignore[arg-type, return-value]
    assert shown == [ZeroDivisionError]


def test_an_interrupt_of_the_imports_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Pressed:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "runtime.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "runtime.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
