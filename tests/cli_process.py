"""The command line as a process with an engine that answers from a list, and a configuration for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fake_engine import ANSWERS

ROOT = Path(__file__).parent.parent
TEXT = "".join(ANSWERS)


def write_config(tmp_path: Path) -> str:
    """For a fixture: the path of a configuration that the engine of the list takes."""
    path = tmp_path / "run.yaml"
    path.write_text("model: {source: somewhere}\ndevice: cpu\nrun:\n  prompts: [from the config]\n")
    return str(path)


def process(*arguments: str, module: str = "tests.fake_engine", **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, encoding="utf-8", timeout=60, cwd=ROOT, env=environment, check=False, **options,
    )  # fmt: skip


def pythons_own_handler() -> Iterator[None]:
    """For a fixture: Ctrl-C raises KeyboardInterrupt, also where Python was started in the background and has set no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
