"""Requests of an engine that come and go: slots that change hands, cancels, iterators that are dropped, two streams, its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from runtime.engine import Engine
from runtime.plan import StepPlan
from runtime.report import RequestOutput
from runtime.step_runner import Outcome
from tests.looping_engine import LONG, PROMPTS, check_drained
from tests.tiny_engine import LOOPING, Arrival, Reference, check_idle, check_outputs, drive, open_tiny, tiny_reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("looping"), LOOPING)


@pytest.fixture
def open_(reference: Reference) -> Callable[..., Engine]:
    return partial(open_tiny, reference.model.path)


def test_slots_are_used_again_and_nothing_of_their_owner_remains(reference: Reference, open_: Callable[..., Engine]) -> None:
    arrivals = [Arrival(PROMPTS[i % 4], replace(LONG, max_tokens=3 + 5 * (i % 3)), i // 2) for i in range(12)]
    with open_(scheduler__max_num_seqs=2) as engine:
        check_outputs(reference, engine, arrivals, drive(engine, arrivals))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("policy", ["discrete", "integrated"])
def test_a_cancel_in_flight_frees_the_slot_for_the_next(
    reference: Reference, open_: Callable[..., Engine], policy: str, schedule: str
) -> None:
    with open_(scheduler__max_num_seqs=2, mirror__policy=policy, schedule=schedule, k=3) as engine:
        victims = [engine.submit(PROMPTS[0], LONG), engine.submit(PROMPTS[2], LONG)]
        follower = engine.submit(PROMPTS[3], LONG)
        for _ in range(4):
            engine.step()
        assert engine.has_unfinished
        assert engine.cancel(victims[0].request.request_id)
        assert not engine.cancel(victims[0].request.request_id)
        while engine.has_unfinished:
            engine.step()
        outputs = [generation.output for generation in (*victims, follower)]
        assert all(isinstance(output, RequestOutput) for output in outputs)
        cancelled, *others = [output for output in outputs if output is not None]
        expected = reference.generate(PROMPTS[0], LONG, 64)[0]
        assert cancelled.finish_reason == "cancelled"
        assert 0 < len(cancelled.token_ids) < len(expected)
        assert cancelled.token_ids == expected[: len(cancelled.token_ids)]
        assert [output.token_ids for output in others] == [reference.generate(p, LONG, 64)[0] for p in (PROMPTS[2], PROMPTS[3])]
        check_idle(engine)


def test_a_waiting_request_can_be_cancelled(open_: Callable[..., Engine]) -> None:
    with open_(scheduler__max_num_seqs=1) as engine:
        running, waiting = engine.submit(PROMPTS[0], LONG), engine.submit(PROMPTS[1], LONG)
        engine.step()
        assert engine.cancel(waiting.request.request_id)
        assert waiting.output is not None
        assert (waiting.output.token_ids, waiting.output.text, waiting.output.ttft_s) == ((), "", None)
        assert running.output is None


def test_an_iterator_that_is_dropped_cancels_what_runs(reference: Reference, open_: Callable[..., Engine]) -> None:
    with open_() as engine:
        events = engine.stream(PROMPTS, LONG)
        for _ in range(5):
            next(events)
        assert engine.scheduler.has_unfinished
        events.close()
        assert not engine.scheduler.has_unfinished
        assert [o.token_ids for o in engine.generate(PROMPTS, LONG)] == [reference.generate(p, LONG, 64)[0] for p in PROMPTS]
        check_drained(engine)


def test_two_streams_share_the_engine(reference: Reference, open_: Callable[..., Engine]) -> None:
    with open_() as engine:
        first, second = engine.stream(PROMPTS[0], LONG), engine.stream(PROMPTS[2], LONG)
        tokens: dict[int, list[int]] = {0: [], 1: []}
        open_streams = {0: first, 1: second}
        while open_streams:
            for number, events in list(open_streams.items()):
                event = next(events, None)
                if event is None:
                    del open_streams[number]
                else:
                    tokens[number] += event.token_ids
        assert tuple(tokens[0]) == reference.generate(PROMPTS[0], LONG, 64)[0]
        assert tuple(tokens[1]) == reference.generate(PROMPTS[2], LONG, 64)[0]


def test_events_join_to_the_output(open_: Callable[..., Engine]) -> None:
    with open_(k=5) as engine:
        events = list(engine.stream(PROMPTS, LONG))
        for index in range(len(PROMPTS)):
            mine = [event for event in events if event.index == index]
            output = mine[-1].output
            assert output is not None
            assert [event.output for event in mine[:-1]] == [None] * (len(mine) - 1)
            assert "".join(event.text for event in mine) == output.text == engine.tokenizer.decode(list(output.token_ids))
            assert tuple(token for event in mine for token in event.token_ids) == output.token_ids
            assert output.ttft_s is not None
            assert output.ttft_s >= 0


def test_closing_ends_what_runs(open_: Callable[..., Engine]) -> None:
    engine = open_()
    generation = engine.submit(PROMPTS[0], LONG)
    for _ in range(3):
        engine.step()
    engine.close()
    engine.close()
    assert generation.output is not None
    assert generation.output.finish_reason == "cancelled"
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit(PROMPTS[0], LONG)
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(PROMPTS[0], LONG)
    with pytest.raises(RuntimeError, match="closed"), engine:
        pass


def test_a_second_thread_is_told_and_the_first_goes_on(open_: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []

    def ask(engine: Engine) -> None:
        try:
            engine.generate(PROMPTS[1], LONG)
        except RuntimeError as error:
            errors.append(error)

    with open_() as engine:
        alone = engine.generate(PROMPTS[0], LONG)[0].token_ids
        launch = engine.runner.launch

        def with_company(plan: StepPlan) -> Outcome:
            if not errors:
                thread = threading.Thread(target=ask, args=(engine,))
                thread.start()
                thread.join()
            return launch(plan)

        monkeypatch.setattr(engine.runner, "launch", with_company)
        assert engine.generate(PROMPTS[0], LONG)[0].token_ids == alone
    assert "another thread is in the middle of a step" in str(errors[0])
    assert "open an engine for each" in str(errors[0])
