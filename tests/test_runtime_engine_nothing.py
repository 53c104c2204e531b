"""Rows of logits that are all NaN, in steps that are greedy and in steps that are not: the request that needs such a row ends in
front of it and is reported, the others go on, and a row that no token comes from is nobody's business."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.engine import Engine
from runtime.sampling import SamplingParams
from runtime.virtual_device import VirtualDevice
from tests.candidate_proposer import drafts_from
from tests.planted_nan import plant_nan
from tests.test_dflash_engine import SHAPES
from tests.tiny_checkpoint import VOCAB_SIZE
from tests.tiny_drafter import write_tiny_drafter
from tests.tiny_engine import EXECUTOR, LOOPING, Arrival, Reference, check_idle, check_outputs, drive, open_tiny, tiny_reference

BAD = 13
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
WARM = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, seed=4)
ARRIVALS = [
    Arrival([7, 8, 9], GREEDY),
    Arrival([10, 11], GREEDY),
    Arrival([12, BAD, 4, 5, 6], GREEDY, step=1),  # its first token already has no row to come from
    Arrival([3, 4, 5, 6, 3, 4, 5], GREEDY, step=2),
    Arrival([7, 8, 9], replace(GREEDY, max_tokens=4), step=3),  # ends with the token, of itself
    Arrival([7, 8, 9], replace(GREEDY, stop_token_ids=(BAD,)), step=3),
    Arrival([7, 8, 9], replace(GREEDY, stop_token_ids=(0,)), step=4),  # the id that stands in a row of nothing's place
    Arrival([5] * 9, GREEDY, step=5),
]
ENDED = [("error", 4), ("length", 20), ("error", 0), ("length", 20), ("length", 4), ("stop", 4), ("error", 4), ("error", 9)]
"""How each ends, and behind how many tokens."""
WAYS: list[dict[str, Any]] = [
    {},
    {"schedule": "random", "seed": 3},
    {"runner__async": False},
    {"runner__steps_in_flight": 4},
    {"graphs__mode": "eager"},
    {"graphs__ops": "fused"},
    {"graphs__buckets": [4]},
    {"scheduler__max_num_batched_tokens": 5},
    {"mirror__policy": "integrated"},
    {"mirror__policy": "discrete", "runner__async": False},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("nothing") / "looping", LOOPING)


def up_to_bad(token_ids: Sequence[int], bad: int = BAD) -> tuple[int, ...]:
    """Of a text of a sound model, what the damaged one can say."""
    return tuple(token_ids[: token_ids.index(bad) + 1] if bad in token_ids else token_ids)


@contextmanager
def damaged(reference: Reference, k: int, *, on: Any = None, planted: str = "embed", **settings: Any) -> Iterator[Engine]:
    """An engine in which row `BAD` of a weight is NaN: of the embedding, where that is a token that makes NaN."""
    device = on or VirtualDevice(EXECUTOR, schedule=settings.pop("schedule", "lazy"), seed=settings.pop("seed", 0), poison=True)
    with pytest.MonkeyPatch.context() as patch:
        plant_nan(patch, device, BAD, planted)
        with open_tiny(reference.model.path, k=k, on=device, **settings) as engine:
            yield engine


def check_reports(engine: Engine, reference: Reference, caplog: pytest.LogCaptureFixture) -> None:
    """ARRIVALS through a damaged engine; then the slots are used again, as if nothing had been."""
    outputs = drive(engine, ARRIVALS)
    assert [(output.finish_reason, len(output.token_ids)) for output in outputs] == ENDED
    for arrival, output in zip(ARRIVALS, outputs, strict=True):
        sound = reference.generate(arrival.prompt, arrival.params, engine.scheduler.max_model_len)[0]
        assert output.token_ids == (() if BAD in arrival.prompt else up_to_bad(sound))
    said = [record.getMessage() for record in caplog.records if "no token could be chosen" in record.getMessage()]
    assert [line.partition(": every")[0] for line in sorted(said)] == [
        f"{output.request_id}: no token could be chosen behind its first {len(output.token_ids)}"
        for output in outputs
        if output.finish_reason == "error"
    ]
    assert engine.runner.paths.degenerate_tokens == len(said) == 4
    again = drive(engine, [ARRIVALS[1], ARRIVALS[3]])
    assert [output.token_ids for output in again] == [outputs[1].token_ids, outputs[3].token_ids]
    check_idle(engine)


@contextmanager
def proposing(drafts: str) -> Iterator[int]:
    """How many drafts a step has, of n-grams, of a table, or none. The table has one draft behind each token: BAD behind 19, where
    it is right in two texts and wrong in the others."""
    with ExitStack() as stack:
        if drafts == "table":
            ids = np.full((VOCAB_SIZE, 1), 10, np.int32)
            for before, token in ((10, 19), (19, BAD), (BAD, 7), (21, BAD), (5, 21)):
                ids[before] = token
            stack.enter_context(drafts_from(ids, np.ones((VOCAB_SIZE, 1), np.float32)))
        yield 0 if drafts == "none" else 3


@contextmanager
def drafting(reference: Reference, drafts: str, **settings: Any) -> Iterator[Engine]:
    """A damaged engine that speculates."""
    with proposing(drafts) as k, damaged(reference, k, **{"scheduler__max_num_seqs": 4, **settings}) as engine:
        yield engine


@pytest.mark.parametrize("drafts", ["none", "ngram", "table"])
@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_greedy_steps_report_rows_of_nothing(
    reference: Reference, drafts: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In the first token behind a prompt, in decode steps, behind drafts that were accepted; never behind drafts that were not."""
    with drafting(reference, drafts, **settings) as engine:
        check_reports(engine, reference, caplog)
        assert not engine.runner.paths.sampled_steps
        if drafts != "none":
            assert engine.scheduler.acceptance.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["v1", "v2"])
@pytest.mark.parametrize("settings", [WAYS[1], WAYS[2], WAYS[5]], ids=str)
def test_a_drafter_beside_it(
    reference: Reference, name: str, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a drafter makes of NaN in the residual streams that it taps is nobody's business either."""
    drafter = write_tiny_drafter(tmp_path / name, LOOPING, replace(SHAPES[name], taps=(0,)))
    with damaged(reference, 4, speculator__method="dflash", speculator__draft_source=str(drafter.path), **settings) as engine:
        check_reports(engine, reference, caplog)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_drafter_of_nothing_changes_no_text(
    reference: Reference, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All that it says is NaN: texts are whole, and nobody is told."""
    drafter = write_tiny_drafter(tmp_path / name, LOOPING, replace(SHAPES[name], taps=(0,)))
    settings = {"speculator__method": "dflash", "speculator__draft_source": str(drafter.path)}
    with damaged(reference, 4, planted="draft.final_norm", **settings) as engine:
        check_outputs(reference, engine, ARRIVALS, drive(engine, ARRIVALS))
        assert engine.runner.paths.degenerate_tokens == 0
        # A selector walks through the candidates that it is given, whatever they are worth.
        assert (engine.scheduler.acceptance.num_draft_tokens > 0) == (name == "v2")
    assert "no token could be chosen" not in caplog.text


@pytest.mark.parametrize("drafts", ["none", "ngram", "table"])
@pytest.mark.parametrize("settings", [WAYS[0], WAYS[2], WAYS[8], {"speculator__verification": "block"}], ids=str)
def test_greedy_requests_beside_sampled_ones(
    reference: Reference, drafts: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of both kinds: one warm request is healthy, one ends as the greedy ones do."""
    warm = [Arrival([10, 11], replace(WARM, seed=seed), step=2) for seed in range(6)]
    with proposing(drafts) as k, open_tiny(reference.model.path, k=k, **settings) as engine:
        sound = [output.token_ids for output in drive(engine, warm)]
    assert {BAD in text[:-1] for text in sound} == {True, False}
    with drafting(reference, drafts, **settings) as engine:
        outputs = drive(engine, [*ARRIVALS, *warm])
        assert [(output.finish_reason, len(output.token_ids)) for output in outputs[: len(ARRIVALS)]] == ENDED
        for text, output in zip(sound, outputs[len(ARRIVALS) :], strict=True):
            assert output.token_ids == up_to_bad(text)
            assert output.finish_reason == ("error" if BAD in text[:-1] else "length")
        assert engine.runner.paths.sampled_steps["temperature"] > 0
        check_idle(engine)


@pytest.mark.parametrize("stop", ["+", "1+", "(", "(1", "/"])
@pytest.mark.parametrize("drafts", ["none", "ngram", "table"])
@pytest.mark.parametrize("async_", [True, False])
def test_a_stop_string_in_front_of_nothing(
    reference: Reference, drafts: str, async_: bool, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the request as it does in a sound model, counts of drafts included, though the block went on into a row of nothing:
    nobody is told, and the other request goes on."""
    arrivals = [Arrival([7, 8, 9], replace(GREEDY, stop=(stop,), logprobs=0)), Arrival([10, 11], GREEDY)]
    settings: dict[str, Any] = {"runner__async": async_, "scheduler__max_num_seqs": 4}

    def told(engine: Engine) -> list[Any]:
        outputs = drive(engine, arrivals)
        check_idle(engine)
        assert engine.runner.paths.degenerate_tokens == 0
        assert len(outputs[0].logprobs or ()) == len(outputs[0].token_ids)
        texts = [(output.token_ids, output.text, output.finish_reason) for output in outputs]
        counts = [engine.scheduler.acceptance, *(output.acceptance for output in outputs if output.acceptance is not None)]
        return [*texts, *(stats.as_dict() for stats in counts)]

    with proposing(drafts) as k, open_tiny(reference.model.path, k=k, **settings) as engine:
        sound = told(engine)
    assert sound[0][2] == "stop"
    with drafting(reference, drafts, **settings) as engine:
        assert told(engine) == sound
    assert "no token could be chosen" not in caplog.text


@pytest.mark.parametrize("async_", [True, False])
def test_every_draft_in_front_of_nothing_counts(reference: Reference, async_: bool) -> None:
    """Behind the first token a block of three drafts, all right, and nothing behind them; the step in flight by then is void."""
    with drafting(reference, "table", runner__async=async_) as engine:
        generation = engine.submit([7, 8, 9], GREEDY)
        while engine.has_unfinished:
            engine.step()
        request = generation.request
        assert (request.finish_reason, len(request.output_token_ids)) == ("error", 4)
        assert request.acceptance.histogram == engine.scheduler.acceptance.histogram == [0, 0, 0, 1]
        assert engine.runner.paths.degenerate_tokens == 1


@pytest.mark.parametrize("budget", [2, 32])
def test_a_prompt_that_nothing_follows_has_its_logprobs(reference: Reference, budget: int) -> None:
    """The row of the first token is the first one of nothing: those before it stand."""
    prompt, params = [7, 8, 9, 10, BAD], replace(GREEDY, prompt_logprobs=1)
    with open_tiny(reference.model.path, k=0, scheduler__max_num_batched_tokens=budget) as engine:
        (sound,) = engine.generate(prompt, params)
    with damaged(reference, 0, scheduler__max_num_batched_tokens=budget) as engine:
        (output,) = engine.generate(prompt, params)
    assert (output.finish_reason, output.token_ids) == ("error", ())
    assert output.prompt_logprobs is not None
    assert None not in output.prompt_logprobs[1:]
    assert output.prompt_logprobs == sound.prompt_logprobs
