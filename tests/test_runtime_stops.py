"""Stop strings: where they end a request, and that nothing behind them stays: no text, token, log probability or count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.detokenizer import Detokenizer
from runtime.engine import Engine
from runtime.generation import Generation, Place
from runtime.logprobs import TokenLogprobs
from runtime.metrics import AcceptanceStats
from runtime.plan import FinishReason, TokenUpdate
from runtime.request import Request
from runtime.sampling import SamplingParams
from tests.test_runtime_detokenizer import CHARACTERS, STEPS, TOKENIZER, cut_by_hand, in_steps
from tests.tiny_engine import LOOPING, open_tiny, tiny_reference

K = 8


def first_stop(tokens: list[int], stops: list[str], min_tokens: int) -> tuple[int, str, str | None]:
    """(tokens kept, their text, the stop string), one token at a time."""
    decoder = Detokenizer(TOKENIZER)
    ignored = armed = ""
    for count, token in enumerate(tokens, start=1):
        piece = decoder.push((token,))
        if count < min_tokens:
            ignored += piece
            continue
        armed += piece
        text, matched = cut_by_hand(armed, stops)
        if matched is not None:
            return count, ignored + text, matched
    last = decoder.flush()
    if len(tokens) < min_tokens:
        return len(tokens), ignored + last, None
    text, matched = cut_by_hand(armed + last, stops)
    return len(tokens), ignored + text, matched


@settings(max_examples=300, deadline=None)
@given(
    text=CHARACTERS.filter(bool),
    stops=st.lists(st.text(alphabet="aé日🙂\n\ufffd", min_size=1, max_size=3), min_size=1, max_size=3),
    missing=st.sampled_from([0, 0, 1, 2]),
    steps=STEPS,
    include=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 3]),
    ends=st.sampled_from(["length", "error"]),
)
@example(text="aé日aa", stops=["é日"], missing=0, steps=[2], include=False, min_tokens=0, ends="length")  # both straddle two blocks
@example(text="🙂aaaa", stops=["🙂"], missing=0, steps=[7], include=True, min_tokens=0, ends="length")  # four tokens are behind it
@example(text="aé", stops=["a\ufffd"], missing=1, steps=[1], include=False, min_tokens=0, ends="length")  # half a character's mark
@example(text="aé", stops=["a\ufffd"], missing=1, steps=[2], include=False, min_tokens=0, ends="error")
@example(text="é", stops=["\ufffd"], missing=1, steps=[1], include=False, min_tokens=3, ends="length")
@example(text="aéa", stops=["é"], missing=0, steps=[4], include=False, min_tokens=0, ends="error")
@example(text="aé", stops=["é"], missing=0, steps=[3], include=False, min_tokens=0, ends="error")  # with its last token
def test_what_a_request_keeps(
    text: str, stops: list[str], missing: int, steps: list[int], include: bool, min_tokens: int, ends: FinishReason
) -> None:
    """Tokens are single bytes, so that every character of two and more straddles. The last bytes may be missing.

    In front of nothing every token of a block was a draft: k is such that this may be said of the longest.
    """
    tokens = list(text.encode())
    tokens = tokens[: max(1, len(tokens) - missing)]
    count, kept, matched = first_stop(tokens, stops, min_tokens)
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens, logprobs=0)  # type: ignore[arg-type]
    request = Request("r", [1], params)
    request.acceptance, totals = AcceptanceStats(K), AcceptanceStats(K)
    generation = Generation(Place(0, 0), "p", request, TOKENIZER, speculates=True)
    blocks = in_steps(tokens, steps)
    seen = 0
    for block in blocks:
        last = block is blocks[-1]
        accepted = len(block) - (not last or ends == "length")
        told = [TokenLogprobs(token, -1.0, 1) for token in block]
        for stats in (request.acceptance, totals):
            stats.add_step(K, accepted)
        request.output_token_ids += block
        took = generation.push(TokenUpdate("r", block, ends if last else None, K, told))
        if generation.stopped_by_string:
            totals.shorten_step(K, accepted, took - 1)
        seen += took
        if generation.stopped_by_string:
            break
    output = generation.output
    if matched is not None and output is None:
        generation.push(TokenUpdate("r", [], "stop"))
        output = generation.output
    assert output is not None
    assert seen == count
    assert output.token_ids == tuple(tokens[:count])
    assert output.text == kept + (matched if include and matched else "")
    assert output.finish_reason == (ends if matched is None else "stop")
    assert output.logprobs is not None
    assert [token.token_id for token in output.logprobs] == tokens[:count]
    expected = AcceptanceStats(K)
    left = count
    for block in blocks:
        if left > 0:
            in_front = ends == "error" and block is blocks[-1] and matched is None
            expected.add_step(K, min(len(block), left) - (not in_front))
        left -= len(block)
    assert (request.output_token_ids, request.acceptance.histogram) == (tokens[:count], expected.histogram)
    assert totals.histogram == expected.histogram
    events = generation.events
    assert [token for event in events for token in event.token_ids] == tokens[:count]
    assert "".join(event.text for event in events) == output.text


def test_half_a_character_in_front_of_nothing() -> None:
    """Its mark completes the stop string with no token of the last step, which keeps its count of 0 drafts."""
    request = Request("r", [1], SamplingParams(stop=("\ufffd",)))
    request.acceptance = AcceptanceStats(K)
    generation = Generation(Place(0, 0), "p", request, TOKENIZER, speculates=True)
    for token_ids, ends in (("é".encode()[:1], None), (b"", "error")):
        request.acceptance.add_step(K, 0)
        request.output_token_ids += token_ids
        assert generation.push(TokenUpdate("r", list(token_ids), ends, K)) == len(token_ids)  # type: ignore[arg-type]
    assert generation.output is not None
    assert (generation.output.finish_reason, generation.output.text) == ("stop", "")
    assert request.acceptance.histogram == [2, *[0] * K]


@pytest.fixture(scope="module")
def open_(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    model = tiny_reference(tmp_path_factory.mktemp("stops"), LOOPING).model.path
    return lambda **settings: open_tiny(model, **settings)


@pytest.mark.parametrize("async_", [True, False])
def test_a_stop_string_inside_a_verified_block(open_: Callable[..., Engine], async_: bool) -> None:
    """The device has gone on by then, with a step in flight when asynchronous; request and totals count as if it had not."""
    params = SamplingParams(max_tokens=30, logprobs=1)
    prompts = [[7, 9, 11, 7, 9], [12, 13, 12, 13, 12, 13, 12], [5, 6, 5, 6, 5, 6, 5]]
    inside = 0
    with open_(k=5, runner__async=async_) as engine:
        for prompt in prompts:
            blocks = [event.token_ids for event in engine.stream(prompt, params) if event.token_ids]
            whole = [token for block in blocks for token in block]
            for end in range(4, len(whole)):
                # The text of three tokens that first stands where the third of them is `end` tokens in.
                stop = engine.tokenizer.decode(whole[end - 3 : end])
                if not stop or engine.tokenizer.decode(whole[:end]).count(stop) != 1:
                    continue
                before = engine.scheduler.acceptance.histogram.copy()
                (output,) = engine.generate(prompt, replace(params, stop=(stop,)))
                if len(output.token_ids) != end:
                    continue
                assert output.finish_reason == "stop"
                assert output.text == engine.tokenizer.decode(whole[: end]).removesuffix(stop)
                assert output.logprobs is not None
                assert len(output.logprobs) == end
                expected, left = AcceptanceStats(5), end
                for block in blocks:
                    if 0 < left < len(block):
                        inside += 1
                    if left > 0 and len(block) > 1:
                        expected.add_step(5, min(len(block), left) - 1)
                    left -= len(block)
                assert output.acceptance is not None
                assert output.acceptance.num_accepted_tokens == expected.num_accepted_tokens
                after = engine.scheduler.acceptance.histogram
                assert [late - early for early, late in zip(before, after, strict=True)] == output.acceptance.histogram
    assert inside >= 2
