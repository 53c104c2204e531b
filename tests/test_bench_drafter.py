"""What the bench of a drafter times is a step of requests that all still run: kernels leave at once for rows without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import bench_drafter
from runtime.bench_drafter import Collected, HeldStep
from runtime.engine import Engine
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, write_tiny_drafter
from tests.tiny_engine import open_tiny

REQUESTS, DRAFTS = 3, 3


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(bench_drafter, "MOST_TOKENS", 48)
    monkeypatch.setattr(bench_drafter, "VERIFIED_STEPS", 3)
    model = write_tiny_checkpoint(tmp_path / "model", TinyShape(num_layers=3))
    drafter = write_tiny_drafter(tmp_path / "drafter", model.shape, DrafterShape(taps=(0, 1)))
    settings: dict[str, Any] = {"speculator__method": "dflash", "speculator__draft_source": str(drafter.path)}
    with open_tiny(model.path, k=DRAFTS, speculator__acceptance="synthetic:0.6", **settings) as engine:
        yield engine


def state(engine: Engine) -> dict[str, Any]:
    runner: Any = engine.runner
    runner.device.synchronize()
    names = runner.buffers.ADMITTED_DEVICE
    return {name: runner.device.download(runner.buffers.table[name].device_array).copy() for name in names}


def test_all_requests_run_where_they_are_held(engine: Engine) -> None:
    for _ in range(2):  # verify steps of requests before do not count
        held = HeldStep(engine, REQUESTS, 4)
        runner: Any = engine.runner
        live = runner.device.download(runner.buffers.step.inputs.live)
        assert live.tolist() == [REQUESTS * (1 + DRAFTS), REQUESTS, REQUESTS * (1 + DRAFTS)]
        assert not state(engine)["finished"].any()
        held.close()
        assert not engine.has_unfinished


def test_a_step_moves_what_restore_brings_back(engine: Engine) -> None:
    held = HeldStep(engine, REQUESTS, 4)
    before = state(engine)
    held.record_both(held.stream)
    moved = state(engine)
    assert (moved["num_computed"] > before["num_computed"])[:REQUESTS].all()
    held.restore()
    for name, values in state(engine).items():
        assert np.array_equal(values, before[name]), name


def test_parts_are_those_of_the_engines_graphs(engine: Engine) -> None:
    held = HeldStep(engine, REQUESTS, 4)
    for key, record in ((held.verify, held.record_verify), (held.propose, held.record_propose)):
        collected = Collected()
        record(collected)
        assert len(collected.launches) == held.library.graphs[key].num_nodes


def test_requests_that_end_too_early_are_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_drafter, "MOST_TOKENS", 2)
    with pytest.raises(ValueError, match="3 requests ended without 3 steps"):
        HeldStep(engine, REQUESTS, 4)
