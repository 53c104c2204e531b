"""Keeps this folder out of the ordinary suite: it needs torch and transformers (`make parity`, extra `parity`)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only where the command line names the folder."""
    return None if any("parity" in argument for argument in config.args) else True
