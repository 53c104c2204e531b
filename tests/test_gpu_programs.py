"""The virtual device's random programs, and the mirrors' small engine, on a GPU: without a race they end as in order."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from runtime.device import open_device
from runtime.mirror_errors import StagingBusyError
from runtime.virtual_device import VirtualDevice
from tests.fuzz_interpreter import Interpreter, PythonExecutor
from tests.fuzz_oracle import oracle
from tests.fuzz_programs import GENERATORS, STREAMS, Program
from tests.mirror_steps import POLICIES, Steps, expected, rows_of_outcomes
from tests.spin import delay

pytestmark = pytest.mark.gpu

NUM_PROGRAMS = 120


def programs(generator: str) -> list[Program]:
    """Those without a race, whatever a query answers."""
    drawn = [GENERATORS[generator](random.Random(seed)) for seed in range(NUM_PROGRAMS)]
    return [program for program in drawn if not oracle(program, {})]


def run_slowly(program: Program, slow: int | None, rounds: int = 2) -> list[list[int]]:
    """What `program` reads on a GPU where everything on stream `slow` comes late."""
    with open_device("cuda") as device:  # type: ignore[attr-defined]
        device.races = []  # the interpreter looks there
        interpreter = Interpreter(device)
        if slow is not None:
            sink = device.array("sink", (1,), np.int32)
            for method in ("launch", "copy"):
                delay(interpreter.streams[slow], method, sink, rounds)
        return interpreter.run(program).outputs


@pytest.mark.parametrize("slow", [None, *range(STREAMS)])
@pytest.mark.parametrize("generator", list(GENERATORS))
def test_programs_without_a_race_end_as_in_order(generator: str, slow: int | None, record_property: Any) -> None:
    """Each time another stream is the slow one."""
    chosen = programs(generator)
    assert len(chosen) >= 5
    for program in chosen:
        reference = Interpreter(VirtualDevice(PythonExecutor(), schedule="eager", detect=False)).run(program).outputs
        assert run_slowly(program, slow) == reference, program
    record_property(f"{generator} programs, slow stream {slow}", len(chosen))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slow", [None, "compute.copy", "compute.replay", "copy.copy"])
def test_mirrors_step_by_step(policy: str, slow: str | None) -> None:
    with open_device("cuda", poison=True) as device:  # type: ignore[attr-defined]
        steps = Steps(device, policy)
        if slow is not None:
            stream, method = slow.split(".")
            delay(getattr(steps, stream), method, device.array("sink", (1,), np.int32))
        outcomes = list(steps.run(25))
        assert rows_of_outcomes(outcomes) == expected(25)


def test_without_waits_the_same_programs_go_wrong(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    """The proof that the tests above can fail: the same programs and delays on a device whose streams do not wait for events."""
    from runtime.cuda_stream import CudaStream

    plain = CudaStream.wait
    monkeypatch.setattr(CudaStream, "wait", lambda stream, event: plain(stream, event) if stream.device.capturing else None)
    wrong = 0
    for program in programs("mostly_ordered"):
        reference = Interpreter(VirtualDevice(PythonExecutor(), schedule="eager", detect=False)).run(program).outputs
        wrong += any(run_slowly(program, slow, rounds=10) != reference for slow in range(STREAMS))
    assert wrong >= 3
    record_property("mostly_ordered programs that go wrong without waits", wrong)


def test_without_waits_the_mirrors_go_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.cuda_stream import CudaStream

    monkeypatch.setattr(CudaStream, "wait", lambda stream, event: None)
    with open_device("cuda", poison=True) as device:  # type: ignore[attr-defined]
        steps = Steps(device, "discrete")
        delay(steps.compute, "replay", device.array("sink", (1,), np.int32))
        outcomes = []
        with suppress(StagingBusyError):  # the host runs ahead of a device that it does not wait for
            for outcome in steps.run(25):
                outcomes.append(outcome)
        assert rows_of_outcomes(outcomes) != expected(25)[: len(outcomes)]
