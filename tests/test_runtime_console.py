"""What is said while the program works: stderr alone, and in a file no bar but lines."""

from __future__ import annotations

import re

import pytest

from runtime import console
from runtime.console import progress_bar, silent_bar

LINE = re.compile(r"^\d\d:\d\d:\d\d (.*), (\d+) s$")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    found = [LINE.match(line) for line in captured.err.splitlines()]
    assert all(found), captured.err
    return [match.group(1) for match in found if match]


def test_a_file_is_told_how_far_it_is_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with progress_bar("G1", "cases") as advance:
        for done in range(13):
            advance(done, 12)
            now[0] += 1.0
    assert lines(capsys) == ["G1: 5/12 cases", "G1: 10/12 cases", "G1: 12/12 cases"]


def test_a_short_task_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("loading", "bytes") as advance:
        advance(93_000_000, 93_000_000)
    with progress_bar("fetching", "bytes") as advance:
        advance(1500, 0)
    assert lines(capsys) == ["loading: 93.0 MB/93.0 MB", "fetching: 1.5 kB"]


def test_where_a_task_fails_the_file_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with progress_bar("G3", "runs") as advance:
            advance(3, 24)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert lines(capsys) == ["G3: 3/24 runs"]


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with silent_bar("G1", "cases") as advance:
        advance(1, 2)
    assert lines(capsys) == []
