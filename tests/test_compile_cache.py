"""Where compiled kernels are kept: a folder of the sources that this process runs."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from graphs.compile_cache import kernel_cache_dir


def test_sources_that_change_while_a_process_runs_do_not_rename_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles what it imported: under the name of newer sources another process would load old code as new."""
    before = kernel_cache_dir()

    def gone(self: Path) -> NoReturn:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert kernel_cache_dir() == before


def test_the_place_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTGRAPH_CACHE", str(tmp_path))
    assert kernel_cache_dir().parent == tmp_path / "kernels"
