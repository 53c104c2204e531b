"""Request: the state machine, the upper bound, and what a preemption forgets."""

from __future__ import annotations

import pytest

from runtime.errors import PromptError
from runtime.plan import ScheduledRow
from runtime.request import Request, RequestState
from runtime.sampling import SamplingParams


def make(prompt: tuple[int, ...] = (1, 2, 3), k: int = 3) -> Request:
    request = Request("r", prompt, SamplingParams(max_tokens=20), arrival_time=10.0)
    request.enqueue(0, k)
    return request


def row(num_tokens: int, *, prefilling: bool, samples: bool = True, k: int = 3) -> ScheduledRow:
    return ScheduledRow("r", 1, 0, num_tokens, 0 if prefilling else k, prefilling, samples, 0)


def running(k: int = 3) -> Request:
    request = make(k=k)
    request.admit(slot=2, epoch=1)
    return request


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptError, match="0 tokens"):
        Request("r", [], SamplingParams())


def test_life_of_a_request() -> None:
    request = make()
    assert (request.state, request.slot, request.num_tokens) == (RequestState.WAITING, None, 3)
    request.admit(slot=2, epoch=7)
    assert (request.state, request.slot, request.epoch, request.prefill_len) == (RequestState.RUNNING, 2, 7, 3)
    request.preempt(epoch=8)
    assert (request.state, request.slot, request.epoch) == (RequestState.PREEMPTED, None, 8)
    request.admit(slot=0, epoch=9)
    request.finish("stop", epoch=10)
    assert request.is_finished
    assert request.finish_reason == "stop"
    assert request.slot is None
    assert request.epoch == 10


ACTIONS = {
    "admit": lambda request: request.admit(0, 5),
    "preempt": lambda request: request.preempt(5),
    "finish": lambda request: request.finish("cancelled", 5),
    "launch": lambda request: request.launch(row(3, prefilling=True)),
    "collect": lambda request: request.collect(row(3, prefilling=True), [4], 0.0),
}


@pytest.mark.parametrize(
    ("state", "illegal"),
    [
        (RequestState.WAITING, ["preempt", "launch", "collect"]),
        (RequestState.RUNNING, ["admit"]),
        (RequestState.PREEMPTED, ["preempt", "launch", "collect"]),
        (RequestState.FINISHED, ["admit", "preempt", "finish", "launch", "collect"]),
    ],
)
def test_illegal_transitions_raise_and_change_nothing(state: RequestState, illegal: list[str]) -> None:
    request = make()
    if state is not RequestState.WAITING:
        request.admit(0, 1)
    if state is RequestState.PREEMPTED:
        request.preempt(2)
    if state is RequestState.FINISHED:
        request.finish("length", 2)
    before = str(request)
    for name in illegal:
        with pytest.raises(RuntimeError, match=f"cannot {name} in state {state.name}"):
            ACTIONS[name](request)
    assert str(request) == before


def test_a_request_is_added_once() -> None:
    request = make()
    with pytest.raises(RuntimeError, match="added before"):
        request.enqueue(1, 3)


def test_upper_bound_moves_by_whole_rows_and_returns_what_was_rejected() -> None:
    request = running()
    prefill, first, second = row(3, prefilling=True), row(4, prefilling=False), row(4, prefilling=False)
    for scheduled in (prefill, first, second):
        request.launch(scheduled)
    assert (request.num_scheduled, request.frames_in_flight, request.sampling_in_flight) == (11, 3, 3)
    assert request.min_total_len == 6  # three prompt tokens and at least one from each frame
    request.collect(prefill, [4], 11.0)
    assert request.num_scheduled == 11  # a prefill never rejects
    request.collect(first, [5, 6], 12.0)
    assert request.num_scheduled == 9  # two of four were rejected
    request.collect(second, [7, 8, 9, 10], 13.0)
    assert request.num_scheduled == request.num_tokens - 1 == 9  # nothing in flight: exact


def test_a_count_that_does_not_add_up_is_noticed_when_nothing_is_in_flight() -> None:
    request = running()
    prefill = row(3, prefilling=True)
    request.launch(prefill)
    with pytest.raises(RuntimeError, match="with nothing in flight"):
        request.collect(prefill, [4, 5], 0.0)


def test_prefill_progress_is_exact_in_chunks() -> None:
    request = running()
    chunk, rest = row(2, prefilling=True, samples=False), row(1, prefilling=True)
    request.launch(chunk)
    assert request.is_prefilling
    assert request.num_scheduled == 2
    assert request.sampling_in_flight == 0
    request.launch(rest)
    assert not request.is_prefilling
    request.collect(chunk, [], 0.0)
    request.collect(rest, [4], 0.0)
    assert request.output_token_ids == [4]


def test_preemption_forgets_what_is_in_flight_and_resumes_from_what_was_collected() -> None:
    request = running()
    request.launch(row(3, prefilling=True))
    request.collect(row(3, prefilling=True), [4], 0.0)
    request.launch(row(4, prefilling=False))
    request.preempt(epoch=2)
    assert (request.num_scheduled, request.frames_in_flight, request.sampling_in_flight) == (0, 0, 0)
    request.admit(slot=1, epoch=3)
    assert (request.prefill_len, request.is_prefilling, request.num_preemptions) == (4, True, 1)


def test_times_come_from_the_injected_clock() -> None:
    request = running()
    prefill, decode = row(3, prefilling=True), row(4, prefilling=False)
    request.launch(prefill)
    request.launch(decode)
    assert request.times.ttft_s is None
    request.collect(prefill, [4], 12.0)
    request.collect(decode, [5, 6, 7, 8], 20.0)
    assert (request.times.ttft_s, request.times.tpot_s) == (2.0, 2.0)
