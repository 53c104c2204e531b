"""An engine that is interrupted, or meets an error, in the middle of a step: it says so, takes no more, and closes in full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphs.cpu_executor import CpuExecutor
from kernels.toy import ACCEPT, REJECT
from runtime.errors import DeviceError
from runtime.gates.toy_engine import ToyEngine, ToyOptions, open_toy
from runtime.landing import PendingRead
from runtime.mirror_errors import TwoWritersError
from runtime.sampling import SamplingParams
from runtime.scheduler import Scheduler
from runtime.virtual_queue import OperationQueue

EXECUTOR = CpuExecutor()
FLIGHTS = pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
SCHEDULES = pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])


def running(schedule: str = "lazy", steps_in_flight: int = 2) -> ToyEngine:
    """Three requests of four slots, some steps in, drafts partly accepted."""
    options = ToyOptions(
        num_slots=4,
        k=3,
        max_model_len=64,
        max_num_batched_tokens=32,
        num_blocks=64,
        schedule=schedule,  # type: ignore[arg-type]
        steps_in_flight=steps_in_flight,
        script=tuple((ACCEPT, REJECT, ACCEPT, ACCEPT, REJECT)[i:] + (ACCEPT,) * i for i in range(4)),
    )
    toy = open_toy(options, EXECUTOR)
    for index, length in enumerate((3, 9, 5)):
        toy.engine.submit(list(range(1, length + 1)), SamplingParams(max_tokens=40), index=index)
    steps(toy, 4)
    return toy


def steps(toy: ToyEngine, count: int) -> None:
    for _ in range(count):
        toy.engine.step()


def interrupted_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(read: PendingRead) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PendingRead, "take", take)


def interrupted_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scheduler, "update", update)


def fail_in_an_operation(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    original = OperationQueue._execute

    def execute(queue: OperationQueue, operation: object) -> None:
        def call() -> None:
            raise error

        operation.call = call  # type: ignore[attr-defined]
        original(queue, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(OperationQueue, "_execute", execute)


def interrupted_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in_an_operation(monkeypatch, KeyboardInterrupt())


@SCHEDULES
@FLIGHTS
@pytest.mark.parametrize("fault", [interrupted_take, interrupted_update, interrupted_operation])
def test_an_interrupted_engine_closes_in_full(
    schedule: str, steps_in_flight: int, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    toy = running(schedule, steps_in_flight)
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises(KeyboardInterrupt):
            steps(toy, 8)
    with pytest.raises(RuntimeError, match=r"stopped in the middle of a step.*close it and open another"):
        toy.engine.step()
    with pytest.raises(RuntimeError, match="stopped in the middle of a step"):
        toy.engine.submit([1, 2])
    toy.engine.close()
    toy.engine.close()
    assert sum(toy.device.allocated_bytes().values()) == 0
    with pytest.raises(RuntimeError, match="the engine is closed"):
        toy.engine.step()


@SCHEDULES
@FLIGHTS
def test_a_kernel_that_raises_is_told_once_and_the_engine_closes(schedule: str, steps_in_flight: int) -> None:
    toy = running(schedule, steps_in_flight)
    with pytest.MonkeyPatch.context() as patch:
        fail_in_an_operation(patch, ZeroDivisionError("planted"))
        with pytest.raises(DeviceError, match="ZeroDivisionError: planted"):
            steps(toy, 8)
    assert toy.device.failed
    toy.engine.close()
    assert sum(toy.device.allocated_bytes().values()) == 0


def test_an_interrupt_between_steps_leaves_the_engine_usable() -> None:
    toy = running()
    events = toy.engine.stream([[1, 2, 3]], SamplingParams(max_tokens=30))
    next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())
    output = toy.engine.generate([[4, 5, 6, 7]], SamplingParams(max_tokens=5))
    assert len(output[0].token_ids) == 5
    toy.engine.close()


def test_what_fails_behind_the_last_step_is_told_by_close_and_freed() -> None:
    toy = running()
    with pytest.MonkeyPatch.context() as patch:
        fail_in_an_operation(patch, ZeroDivisionError("planted"))
        with pytest.raises(DeviceError, match="planted"):
            toy.engine.close()
    assert sum(toy.device.allocated_bytes().values()) == 0


def test_a_graph_that_writes_what_only_the_host_writes_is_refused() -> None:
    """Nothing is staged for it to apply: the two copies would differ under one version."""
    toy = running()
    table = toy.runner.table
    with pytest.raises(TwoWritersError, match=r"min_total_len.*only the host writes it"), table.eager(
        "advance", writes=["min_total_len"]
    ):
        toy.runner.compute.fill(table["min_total_len"].device_array, 0)
    assert np.array_equal(table["min_total_len"].read_host(), toy.device.download(table["min_total_len"].device_array))
    toy.engine.close()
