"""Keeps this folder out of the ordinary suite: it needs torch and transformers (`make parity`, extra `parity`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only where the command line names the folder, and what it needs is there."""
    if not any("parity" in argument for argument in config.args):
        return True
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise pytest.UsageError(f"tests/parity needs {' and '.join(missing)}: call `make parity`, or install the extra `parity`")
    return None
