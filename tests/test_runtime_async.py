"""The two arms of runner.async: same tokens, different paths, and what the asynchronous one never does."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from graphs.cpu_executor import CpuExecutor
from graphs.key import Family, GraphKey
from runtime.config import RunnerConfig
from runtime.execution_arm import resolve_arm
from runtime.gates.case import Case
from runtime.gates.recording import RecordingRunner
from runtime.gates.toy import sequential_decode
from runtime.gates.toy_engine import ToyEngine, open_toy
from runtime.path_counters import PathCounters
from runtime.sampling import SamplingParams

EXECUTOR = CpuExecutor()
PROMPTS = [[1, 2, 3], [4] * 7, [31, 5]]
PARAMS = SamplingParams(max_tokens=18)


def opened(steps_in_flight: int, **axes: Any) -> ToyEngine:
    return open_toy(Case(k=3, batch=3, accept="all", steps_in_flight=steps_in_flight, **axes).options(), EXECUTOR)


def generate(toy: ToyEngine) -> list[tuple[int, ...]]:
    outputs = [output.token_ids for output in toy.engine.generate(PROMPTS, PARAMS)]
    toy.engine.drain()
    toy.engine.close()
    return outputs


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("policy", ["discrete", "integrated"])
def test_the_arms_agree_on_tokens_and_differ_in_their_paths(mode: str, policy: str) -> None:
    arms = {ahead: opened(ahead, mode=mode, policy=policy) for ahead in (1, 2, 3)}
    texts = {ahead: generate(toy) for ahead, toy in arms.items()}
    expected = [tuple(sequential_decode(prompt, PARAMS, 200, True)[0]) for prompt in PROMPTS]
    assert texts == dict.fromkeys((1, 2, 3), expected)
    paths = {ahead: toy.runner.paths for ahead, toy in arms.items()}
    assert paths[1].collected_late == 0
    assert paths[1].collected_at_once > 3
    for ahead in (2, 3):
        assert paths[ahead].collected_late > 3
        assert paths[ahead].collected_at_once <= 2
    for counters in paths.values():
        steps = sum(counters.steps.values())
        assert counters.collected_late + counters.collected_at_once == steps == counters.proposals
        assert set(counters.steps) == {Family.MIXED, Family.VERIFY}
        assert counters.admissions == 3
        assert counters.fall_outs == (Counter() if mode == "graph" else Counter({"graphs.mode = eager": 2 * steps}))


def test_a_steady_step_synchronises_no_stream_and_waits_for_one_event() -> None:
    toy = opened(2)
    for prompt in PROMPTS:
        toy.engine.submit(prompt, PARAMS)
    for _ in range(3):
        toy.engine.step()
    before = toy.device.counters.copy()
    for _ in range(2):
        toy.engine.step()
    counted = toy.device.counters.since(before)
    assert +counted.synchronizes_by_stream == Counter()
    assert (counted.stream_synchronizes, counted.device_synchronizes, counted.transfers) == (0, 0, 0)
    assert counted.event_synchronizes == 2
    assert counted.graph_launches == 4
    toy.engine.close()


def test_the_next_step_is_launched_before_the_last_is_collected() -> None:
    toy = opened(2)
    recording = RecordingRunner(toy.runner, toy.device)
    toy.engine.runner = recording
    toy.engine.submit(PROMPTS[0], PARAMS)
    for number in range(1, 5):
        toy.engine.step()
        assert len(recording.steps) == number
        assert [step.result is not None for step in recording.steps] == [True] * (number - 1) + [False]
    toy.engine.close()


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_first_decode_step_carries_drafts(ahead: int) -> None:
    toy = opened(ahead)
    recording = RecordingRunner(toy.runner, toy.device)
    toy.engine.runner = recording
    toy.engine.generate(PROMPTS, PARAMS)
    first = next(step for step in recording.steps if not any(row.is_prefilling for row in step.plan.rows))
    assert first.result is not None
    assert list(first.result.num_drafts) == [3, 3, 3]
    assert list(first.result.num_sampled) == [4, 4, 4]
    toy.engine.close()


def test_a_cancel_drops_the_frame_in_flight_and_the_slot_is_used_again() -> None:
    toy = opened(2)
    first = toy.engine.submit(PROMPTS[0], PARAMS)
    for _ in range(3):
        toy.engine.step()
    assert toy.engine.cancel(first.request.request_id)
    assert not toy.engine.cancel(first.request.request_id)
    assert toy.engine.generate([PROMPTS[1]], PARAMS)[0].token_ids == tuple(sequential_decode(PROMPTS[1], PARAMS, 200, True)[0])
    assert toy.engine.scheduler.counters.stale_rows == 1
    assert toy.device.races == []
    toy.engine.close()


# --- the arm and its reason ----------------------------------------------------------------------------------------------------


def test_asynchronous_is_the_default() -> None:
    arm = resolve_arm(RunnerConfig())
    assert arm.asynchronous
    assert (arm.steps_in_flight, arm.steps_ahead) == (2, 1)
    assert str(arm) == "asynchronous, 2 steps in flight (runner.async = true)"


def test_the_synchronous_arm_says_so_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="runtime.execution_arm"):
        resolve_arm(RunnerConfig())
        assert caplog.messages == []
        arm = resolve_arm(RunnerConfig.model_validate({"async": False}))
    assert caplog.messages == ["runner: synchronous, a wait after each step (forced by runner.async = false)"]
    assert (arm.steps_in_flight, arm.steps_ahead, arm.asynchronous) == (1, 0, False)


def test_path_counters_as_values() -> None:
    paths = PathCounters()
    paths.launched(GraphKey.mixed(4, 16), 3)
    paths.launched(GraphKey.uniform(2, 4), 2)
    paths.collected(steps_behind=1)
    paths.collected(steps_behind=0)
    assert paths.as_dict() == {
        "steps": {"mixed": 1, "verify": 1},
        "padded_rows": 1,
        "sampled_steps": {},
        "degenerate_tokens": 0,
        "late_captures": 0,
        "proposals": 0,
        "deferred": 0,
        "catch_ups": 0,
        "admissions": 0,
        "collected_late": 1,
        "collected_at_once": 1,
        "fall_outs": {},
    }


def test_info_has_the_paths() -> None:
    toy = opened(2)
    toy.engine.generate(PROMPTS[:1], PARAMS)
    assert toy.engine.info()["paths"]["collected_late"] > 0
    toy.engine.close()
