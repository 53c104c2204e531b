"""An engine whose steps verify more or fewer drafts, or none: text is that of plain decoding whatever is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.key import Family
from kernels import oracle_step
from kernels.clear_drafts import clear_drafts
from runtime.draft_calibration import adapt
from runtime.draft_lengths import AdaptiveLengths, FixedLength, ScriptedLengths
from runtime.sampling import SamplingParams
from tests.kernel_cases import Launch, launches, live
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, check_outputs, drive, open_tiny, tiny_reference


@launches((1, 1), (2, 3))
def test_clear_drafts(launch: Launch) -> None:
    args = {
        "draft_tokens": np.arange(20, dtype=np.int32).reshape(5, 4),
        "num_draft": np.full(5, 4, np.int32),
        "idx_mapping": np.array([3, 0, -1, 9, 2], np.int32),
        "num_requests": live(4),
    }
    drafts, counts = oracle_step.clear_drafts(args["draft_tokens"], args["num_draft"], args["idx_mapping"][:4])
    launch.check(clear_drafts, args, {"draft_tokens": drafts, "num_draft": counts})
    assert counts.tolist() == [0, 4, 4, 0, 4]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Three layers, so that a drafter has something to tap that is not the last."""
    return tiny_reference(tmp_path_factory.mktemp("looping"), replace(LOOPING, num_layers=3))


ARRIVALS = [
    Arrival([5, 6, 7, 8, 5, 6, 7, 8, 5, 6], SamplingParams(max_tokens=30, ignore_eos=True), 0),
    Arrival([40, 41, 42], SamplingParams(max_tokens=25), 0),
    Arrival(list(range(10, 45)), SamplingParams(max_tokens=20), 2),
    Arrival([9], SamplingParams(max_tokens=40, min_tokens=5), 3),
    Arrival([3, 3, 3, 3], SamplingParams(max_tokens=12, ignore_eos=True), 3),
    Arrival([77, 78], SamplingParams(max_tokens=1), 9),
]
TABLE = [5, 0, 0, 2, 5, 5, 0, 2, 0, 5]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "random", "seed": 3, "runner__steps_in_flight": 3},
        {"runner__async": False, "mirror__policy": "integrated"},
        {"scheduler__num_blocks": 24},  # too few: requests are preempted
        {"scheduler__max_num_batched_tokens": 12},  # too few for all rows: some skip a step
        {"speculator__method": "dflash", "speculator__draft_source": "random:dflash?block=6"},
        {"speculator__method": "dflash", "speculator__draft_source": "random:dflash?block=6", "schedule": "random", "seed": 5},
    ],
    ids=str,
)
def test_text_is_that_of_plain_decoding(reference: Reference, settings: dict[str, Any]) -> None:
    """Lengths change from step to step, 0 among them, by a table that looks at nothing."""
    captured = {"speculator__num_speculative_tokens": {1: 5, 2: 2, 3: 0}}
    with open_tiny(reference.model.path, **(captured | settings)) as engine:
        engine.scheduler.lengths = ScriptedLengths(TABLE)
        check_outputs(reference, engine, ARRIVALS, drive(engine, ARRIVALS))
        launched = engine.runner.library.launches  # type: ignore[attr-defined]
        assert {key.query_len for key in launched if key.family in (Family.DECODE, Family.VERIFY)} == {1, 3, 6}
        drafter = settings.get("speculator__method") == "dflash"
        assert any(key.family is Family.CONTEXT for key in launched) == drafter


def drafted(engine: Any, prompt: list[int]) -> dict[int, tuple[int, ...]]:
    """Drafts of the one request by the length of its text, behind each step that drafted."""
    state, device = engine.runner.buffers.state, engine.runner.device
    generation = engine.submit(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    found = {}
    while generation.output is None:
        engine.step()
        drafts = device.download(state.draft_tokens)[0]
        if (drafts >= 0).any():
            found[int(device.download(state.total_len)[0])] = tuple(drafts.tolist())
    verified = sum(count for key, count in engine.runner.library.launches.items() if key.family is Family.VERIFY)
    assert generation.output.acceptance.num_drafts == verified, "a step that verifies drafts had some to verify"
    return found


def test_a_drafter_that_paused_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    """Its context was moved on by the steps that did not draft: it drafts the same ids behind the same text."""
    settings: dict[str, Any] = {
        "runner__async": False,
        "speculator__method": "dflash",
        "speculator__draft_source": "random:dflash2?block=6",
        "scheduler__max_num_seqs": 1,
    }
    with open_tiny(Path("random:tiny"), k=5, **settings) as engine:
        always = drafted(engine, [5, 6, 7, 300])
    settings["speculator__num_speculative_tokens"] = {1: 5, 2: 0}
    with open_tiny(Path("random:tiny"), **settings) as engine:
        engine.scheduler.lengths = ScriptedLengths([5, 0, 0, 0, 5, 5, 0])
        sometimes = drafted(engine, [5, 6, 7, 300])
    assert 5 < len(sometimes) < len(always)
    assert all(always[length] == drafts for length, drafts in sometimes.items())


def test_auto_measures_decides_and_says_why(reference: Reference) -> None:
    with open_tiny(reference.model.path, speculator__num_speculative_tokens="auto", scheduler__max_num_seqs=2) as engine:
        assert isinstance(engine.scheduler.lengths, AdaptiveLengths)
        check_idle(engine)
        assert engine.runner.paths.as_dict()["steps"] == {}
        check_outputs(reference, engine, ARRIVALS, drive(engine, ARRIVALS))
        said = engine.info()["speculator"]["draft_lengths"]
    assert set(said) == {"step_ms", "conditional_acceptance", "chosen", "steps_by_k"}
    assert list(said["step_ms"]) == ["1 requests", "2 requests"]
    assert set(said["step_ms"]["2 requests"]) == {0, 1, 3, 5, 7}
    assert all(seconds > 0 for seconds in said["step_ms"]["2 requests"].values())
    assert sum(said["steps_by_k"].values()) > 20
    assert "ms" in said["chosen"]["2 requests"]


def test_the_clock_of_the_measurement_decides(reference: Reference) -> None:
    """Steps that verify drafts take ten times as long by this clock: nothing is drafted after the first look."""
    captured: dict[str, Any] = {"speculator__num_speculative_tokens": {1: 5, 2: 2, 3: 0}, "scheduler__max_num_seqs": 1}
    with open_tiny(reference.model.path, **captured) as engine:
        now = [0.0]

        def clock() -> float:
            length = engine.scheduler.lengths
            now[0] += 0.05 if isinstance(length, FixedLength) and length.choices[0] else 0.005
            return now[0]

        adapt(engine, 300, lambda done, total: None, clock)
        table = engine.scheduler.lengths
        assert isinstance(table, AdaptiveLengths)
        assert table.describe()["step_ms"] == {"1 requests": {0: 5.0, 2: 50.0, 5: 50.0}}
        drive(engine, ARRIVALS[:1])
        assert set(table.describe()["steps_by_k"]) <= {0, 2, 5}
        assert table.describe()["chosen"]["1 requests"].startswith("0: a plain step takes 5.000 ms")
