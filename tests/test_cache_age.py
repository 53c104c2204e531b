"""Compiled kernels of sources that nobody runs any more: what is removed, what never is, and who may do so at the same time."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphs import compile_cache
from graphs.cache_age import DAY_SECONDS, MARK, cache_folders, last_used, mark_used, prune
from graphs.compile_cache import kernel_cache_dir
from runtime.cli import app

OWN, RECENT, OLD, UNMARKED = ("0" * 15 + digit for digit in "0123")


def folder(kernels: Path, name: str, days: float, *, marked: bool = True) -> Path:
    """As Numba leaves one, last used so many days ago."""
    path = kernels / name
    inner = path / "kernels_abc"
    inner.mkdir(parents=True)
    (inner / "kernel.nbi").write_bytes(b"x" * 500_000)
    if marked:
        mark_used(path)
    then = time.time() - days * DAY_SECONDS
    for each in (inner / "kernel.nbi", inner, path / MARK, path):  # what is in a folder before the folder
        if each.exists():
            os.utime(each, (then, then))
    return path


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    folder(path, OWN, 400)
    folder(path, RECENT, 29)
    folder(path, OLD, 31)
    folder(path, UNMARKED, 31, marked=False)
    (path / "notes").mkdir()
    os.utime(path / "notes", (0, 0))
    return path


def test_what_was_not_used_for_a_month_goes_but_never_ones_own(kernels: Path) -> None:
    removed = prune(kernels, OWN)
    assert sorted(path.name for path in removed) == [OLD, UNMARKED]
    assert sorted(path.name for path in kernels.iterdir()) == [OWN, RECENT, "notes"]
    assert (kernels / OWN / "kernels_abc" / "kernel.nbi").exists()
    assert prune(kernels, OWN) == []
    assert [path.name for path in prune(kernels, OWN, 0)] == [RECENT]


def test_a_folder_that_is_used_is_young_again_whatever_was_added_to_it_when(kernels: Path) -> None:
    assert not mark_used(kernels / OLD)
    assert mark_used(kernels / UNMARKED), "the first use that is noted"
    assert abs(last_used(kernels / OLD) - time.time()) < 60
    assert prune(kernels, OWN) == []
    assert [found.path.name for found in cache_folders(kernels)][-2:] == [RECENT, OWN]


def test_who_begins_to_use_a_folder_while_it_is_looked_at_keeps_it(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == OLD:
            mark_used(self)  # another process, between the look and the renaming
        return true_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert [path.name for path in prune(kernels, OWN)] == [UNMARKED]
    assert (kernels / OLD / "kernels_abc" / "kernel.nbi").exists()


def test_a_folder_that_another_process_has_made_anew_stays_the_new_one(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        done = true_rename(self, target)
        if self.name == OLD:
            mark_used(target)
            self.mkdir()
            (self / "new").touch()
        return done

    monkeypatch.setattr(Path, "rename", rename)
    prune(kernels, OWN)
    assert [path.name for path in (kernels / OLD).iterdir()] == ["new"]
    assert not list(kernels.glob(".*"))


def test_several_at_a_time_remove_each_folder_once(tmp_path: Path) -> None:
    names = [f"{number:016x}" for number in range(60)]
    for name in names:
        folder(tmp_path, name, 40)
    with ThreadPoolExecutor(4) as pool:
        removed = [path.name for paths in pool.map(lambda _: prune(tmp_path, names[0]), range(4)) for path in paths]
    assert sorted(removed) == names[1:]
    assert [path.name for path in tmp_path.iterdir()] == names[:1]


def test_what_an_interrupted_process_left_is_finished_a_day_later(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernels / OLD).rename(kernels / f".{OLD}.7.gone")
    prune(kernels, OWN)
    assert [path.name for path in kernels.glob(".*")] == [f".{OLD}.7.gone"], "that process may be at it"
    later = time.time() + 1.1 * DAY_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    prune(kernels, OWN)
    assert not list(kernels.glob(".*"))


def test_a_cache_that_is_not_there_or_cannot_be_changed_is_no_error(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prune(kernels / "none", OWN) == []
    assert mark_used(kernels / "none")

    def refused(self: Path, target: Path) -> Path:
        raise PermissionError(self)

    monkeypatch.setattr(Path, "rename", refused)
    assert prune(kernels, OWN) == []


def test_the_first_process_of_new_sources_prunes_and_later_ones_do_not(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(kernels.parent))

    def process() -> set[str]:
        compile_cache._writable.cache_clear()
        try:
            assert compile_cache.writable_cache_dir() == kernel_cache_dir()
        finally:
            compile_cache._writable.cache_clear()
        return {found.path.name for found in cache_folders(kernels)}

    assert process() == {RECENT, kernel_cache_dir().name}
    folder(kernels, OLD, 90)
    assert process() == {RECENT, OLD, kernel_cache_dir().name}


def test_the_command_says_what_it_would_remove_and_does_so_when_asked(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(kernels.parent))
    folder(kernels, kernel_cache_dir().name, 50)
    said = CliRunner().invoke(app, ["cache"]).stdout
    assert f"{kernels}: 5 sets of sources, 2.5 MB, of these sources 0.5 MB" in said
    assert "not used for 30 days: 3 sets of sources, 1.5 MB\n" in said
    assert len(cache_folders(kernels)) == 5
    said = CliRunner().invoke(app, ["cache", "--prune"]).stdout
    assert "removed 3 sets of sources, 1.5 MB" in said
    assert {found.path.name for found in cache_folders(kernels)} == {RECENT, kernel_cache_dir().name}
    assert CliRunner().invoke(app, ["cache", "--prune", "--days", "-1"]).exit_code == 2


def test_a_file_where_the_cache_should_be_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").write_text("")
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    result = CliRunner().invoke(app, ["cache"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: kernel cache {tmp_path / 'kernels'}: is no folder" in result.stderr


def test_a_process_that_runs_for_months_uses_what_it_adds_to(kernels: Path) -> None:
    (kernels / OLD / "kernels_abc" / "later.nbi").touch()
    assert abs(last_used(kernels / OLD) - time.time()) < 60
    assert [path.name for path in prune(kernels, OWN)] == [UNMARKED]
