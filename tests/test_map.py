"""docs/map.md names every file, in the file's own words."""

from __future__ import annotations

from tests.map_of_files import BEGIN, MAP, PACKAGES, ROOT, file_tables, first_sentence


def test_every_file_has_its_line() -> None:
    text = MAP.read_text(encoding="utf-8")
    assert BEGIN in text, "run python -m tests.map_of_files"
    assert BEGIN + text.split(BEGIN)[1] == file_tables(), "docs/map.md is old: run python -m tests.map_of_files"


def test_every_file_says_what_it_is() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "__init__.py":
                assert len(first_sentence(path)) > 15, path
