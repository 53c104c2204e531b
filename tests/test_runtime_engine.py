"""Engine on tiny checkpoints: stops inside a block, limits, preemptions, both arms of `runner.async`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from runtime.engine import Engine
from runtime.errors import CapacityError, PromptError, SamplingError
from runtime.runner import Runner
from runtime.sampling import SamplingParams
from tests.looping_engine import LONG, PROMPTS, check_drained
from tests.tiny_engine import EOS, LOOPING, Arrival, Reference, check_idle, check_outputs, drive, open_tiny, tiny_reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_reference(tmp_path_factory.mktemp("looping"), LOOPING)


@pytest.fixture
def open_(reference: Reference) -> Callable[..., Engine]:
    return partial(open_tiny, reference.model.path)


def blocks_of(engine: Engine, prompt: list[int], params: SamplingParams) -> list[tuple[int, ...]]:
    """Tokens of one request, step by step."""
    return [event.token_ids for event in engine.stream(prompt, params) if event.token_ids]


def long_block(reference: Reference, engine: Engine) -> tuple[list[int], list[tuple[int, ...]], int]:
    """(prompt, its blocks, index of a block of >= 3 tokens): a step that accepted two drafts at least."""
    for prompt in PROMPTS:
        blocks = blocks_of(engine, prompt, LONG)
        for index, block in enumerate(blocks):
            if len(block) >= 3 and block[1] not in (block[2], block[0], blocks[index - 1][-1]):
                return prompt[:], blocks, index
    raise AssertionError("no step accepts two drafts: choose other prompts")


# ---- drafts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 5, 7])
def test_drafts_are_accepted_in_part(reference: Reference, open_: Callable[..., Engine], k: int) -> None:
    """Guards every other test here: with nothing accepted, or everything, half of the paths would not run."""
    arrivals = [Arrival(prompt, LONG) for prompt in PROMPTS]
    with open_(k=k) as engine:
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        stats = engine.scheduler.acceptance
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
        # What a request counts, and what all of them do, are the same counts.
        assert sum(output.acceptance.num_accepted_tokens for output in outputs if output.acceptance) == stats.num_accepted_tokens


def test_drafts_do_not_depend_on_running_ahead(open_: Callable[..., Engine]) -> None:
    """HAZARDS B45: a proposer that reads a history one step old accepts next to nothing when the runner is asynchronous."""
    seen = []
    for async_ in (True, False):
        with open_(k=5, runner__async=async_) as engine:
            outputs = engine.generate(PROMPTS, LONG)
            seen.append([output.acceptance.as_dict() for output in outputs if output.acceptance])
    assert seen[0] == seen[1]


def test_without_speculation_there_is_no_acceptance_to_report(reference: Reference, open_: Callable[..., Engine]) -> None:
    arrivals = [Arrival(prompt, LONG) for prompt in PROMPTS]
    with open_(k=0) as engine:
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
    assert [output.acceptance for output in outputs] == [None] * len(PROMPTS)


# ---- the two arms -------------------------------------------------------------------------------------------------------------


def test_asynchronous_steps_overlap_and_never_wait_for_a_stream(open_: Callable[..., Engine]) -> None:
    """One event is waited for in a step, the outcome's; synchronous steps wait before the next one is planned."""
    depth = {}
    for async_ in (True, False):
        with open_(runner__async=async_) as engine:
            assert isinstance(engine.runner, Runner)
            counters = engine.runner.device.counters
            generation = engine.submit(PROMPTS[0], LONG)
            while generation.request.num_tokens < len(PROMPTS[0]) + 4:
                engine.step()
            before = (counters.stream_synchronizes, counters.device_synchronizes, counters.event_synchronizes)
            depth[async_] = len(engine._in_flight)
            for _ in range(4):
                engine.step()
            after = (counters.stream_synchronizes, counters.device_synchronizes, counters.event_synchronizes)
            assert [new - old for new, old in zip(after, before, strict=True)] == [0, 0, 4]
    assert depth == {True: 1, False: 0}


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_graph_mode_replays_graphs_and_eager_mode_does_not(open_: Callable[..., Engine], mode: str) -> None:
    with open_(graphs__mode=mode) as engine:
        assert isinstance(engine.runner, Runner)
        engine.generate(PROMPTS, LONG)
        launched = sum(engine.runner.library.launches.values())
        assert launched > 0
        assert engine.runner.device.counters.graph_launches == (launched if mode == "graph" else 0)


# ---- stops --------------------------------------------------------------------------------------------------------------------


def test_max_tokens_inside_a_block(reference: Reference, open_: Callable[..., Engine]) -> None:
    with open_() as engine:
        prompt, blocks, index = long_block(reference, engine)
        params = replace(LONG, max_tokens=sum(map(len, blocks[:index])) + 2)
        assert blocks_of(engine, prompt, params) == [*blocks[:index], blocks[index][:2]]
        output = engine.generate(prompt, params)[0]
        assert (output.token_ids, output.finish_reason) == reference.generate(prompt, params, 64)
        check_idle(engine)


def test_a_stop_token_inside_a_block_ends_the_request_there(reference: Reference, open_: Callable[..., Engine]) -> None:
    """B36: what was accepted behind the stop is neither returned nor counted."""
    with open_() as engine:
        prompt, blocks, index = long_block(reference, engine)
        # What came before the block becomes prompt, but for its last token: the stop id may stand there without ending anything.
        before, block = [token for earlier in blocks[:index] for token in earlier], blocks[index]
        prompt += before[:-1]
        assert blocks_of(engine, prompt, LONG)[:2] == [(before[-1],), block]
        stop = block[1]
        assert stop not in (before[-1], block[0])
        params = replace(LONG, stop_token_ids=(stop,), min_tokens=2)
        assert blocks_of(engine, prompt, params) == [(before[-1],), block[:2]]
        stopped, whole = engine.generate([prompt, prompt], [params, replace(LONG, max_tokens=1 + len(block))])
        assert stopped.finish_reason == "stop"
        assert stopped.acceptance is not None
        assert whole.acceptance is not None
        assert whole.acceptance.num_accepted_tokens - stopped.acceptance.num_accepted_tokens == len(block) - 2
        # One more, and the stop cannot be chosen at its place inside the block.
        later = replace(params, min_tokens=3)
        output = engine.generate(prompt, later)[0].token_ids
        assert output == reference.generate(prompt, later, 64)[0]
        assert output[:2] == (before[-1], block[0])
        assert output[2] != stop


def test_the_models_end_of_text_ends_a_request_unless_ignored(reference: Reference, open_: Callable[..., Engine]) -> None:
    prompt = next(
        [first, second]
        for first in range(3, 24)
        for second in range(3, 24)
        if 2 <= len(reference.generate([first, second], SamplingParams(max_tokens=30), 64)[0]) < 30
    )
    with open_() as engine:
        ended, ignored = engine.generate([prompt, prompt], [SamplingParams(max_tokens=30), SamplingParams(30, ignore_eos=True)])
    assert ended.finish_reason == "stop"
    assert ended.token_ids[-1] == EOS
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 30)
    assert ignored.token_ids[: len(ended.token_ids)] == ended.token_ids


@pytest.mark.parametrize("async_", [True, False])
def test_a_stop_string_cuts_the_text_and_the_tokens_behind_it(open_: Callable[..., Engine], async_: bool) -> None:
    with open_(k=5, runner__async=async_) as engine:
        whole = engine.generate(PROMPTS, LONG)
        stops = [output.text[9:11] for output in whole]
        params = [replace(LONG, stop=(stop,)) for stop in stops]
        for full, stop, output in zip(whole, stops, engine.generate(PROMPTS, params), strict=True):
            assert output.finish_reason == "stop"
            assert output.text == full.text[: full.text.index(stop)]
            assert output.token_ids == full.token_ids[: len(output.token_ids)]
            kept = engine.tokenizer.decode(list(output.token_ids))
            assert stop in kept
            assert stop not in engine.tokenizer.decode(list(output.token_ids[:-1]))
        check_drained(engine)


def test_several_parameters_in_one_batch(reference: Reference, open_: Callable[..., Engine]) -> None:
    params = [LONG, SamplingParams(1), SamplingParams(max_tokens=9, min_tokens=9), SamplingParams(20, stop_token_ids=(19,))]
    arrivals = [Arrival(prompt, each) for prompt, each in zip(PROMPTS, params, strict=True)]
    with open_() as engine:
        check_outputs(reference, engine, arrivals, drive(engine, arrivals))
        with pytest.raises(SamplingError, match="params has 2 entries for 4 prompts"):
            engine.generate(PROMPTS, params[:2])


# ---- limits -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 3, 5, 7])
def test_prompts_next_to_every_limit(reference: Reference, open_: Callable[..., Engine], k: int) -> None:
    """B13, B34, B37: k, k + 1, chunk + k + 1 tokens look like verify rows; max_len - 1 leaves room for one token."""
    chunk, longest = 16, 64
    lengths = {1, max(k, 1), k + 1, k + 2, chunk + k + 1, 2 * chunk + k + 1, longest - k - 2, longest - k - 1, longest - 1}
    arrivals = [Arrival([3 + (length * 7 + i * i) % 20 for i in range(length)], LONG, length % 3) for length in sorted(lengths)]
    with open_(k=k, scheduler__max_num_batched_tokens=chunk) as engine:
        check_outputs(reference, engine, arrivals, drive(engine, arrivals))


def test_a_tight_pool_preempts_and_changes_no_token(reference: Reference, open_: Callable[..., Engine]) -> None:
    arrivals = [Arrival(prompt, LONG, step) for step, prompt in enumerate(PROMPTS)]
    with open_(scheduler__num_blocks=20) as engine:
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert engine.scheduler.counters.preemptions >= 2
        assert engine.scheduler.counters.stale_rows > 0


def test_a_preempted_request_counts_min_tokens_from_its_prompt(reference: Reference, open_: Callable[..., Engine]) -> None:
    """One id stops, and nothing but it may come once min_tokens exist, those made before the preemption included."""
    params = SamplingParams(max_tokens=50, min_tokens=32, stop_token_ids=(7,), logit_bias={7: 100})
    arrivals = [Arrival(prompt, params, step) for step, prompt in enumerate(PROMPTS)]
    with open_(scheduler__num_blocks=20) as engine:
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert engine.scheduler.counters.preemptions >= 2
    assert [len(output.token_ids) for output in outputs] == [33] * len(PROMPTS)


def test_a_pool_smaller_than_one_sequence_ends_requests_at_its_size(reference: Reference, open_: Callable[..., Engine]) -> None:
    arrivals = [Arrival(prompt, LONG) for prompt in PROMPTS]
    with open_(scheduler__num_blocks=7) as engine:
        assert engine.scheduler.max_model_len == 28
        outputs = drive(engine, arrivals)
        check_outputs(reference, engine, arrivals, outputs)
        assert all(len(prompt) + len(output.token_ids) == 28 for prompt, output in zip(PROMPTS, outputs, strict=True))


def test_what_can_never_fit_is_refused_and_leaves_nothing_behind(reference: Reference, open_: Callable[..., Engine]) -> None:
    with open_(scheduler__num_blocks=7) as engine:
        with pytest.raises(CapacityError, match="num_blocks = 7"):
            engine.submit([5] * 30, LONG)
        with pytest.raises(PromptError, match="prompt 2"):
            engine.generate([PROMPTS[0], [5] * 64], LONG)
        with pytest.raises(CapacityError, match="num_blocks = 7"):
            engine.generate([PROMPTS[0], [5] * 30], LONG)
        assert not engine.scheduler.has_unfinished
        assert engine.generate(PROMPTS[1], LONG)[0].token_ids == reference.generate(PROMPTS[1], LONG, 28)[0]
