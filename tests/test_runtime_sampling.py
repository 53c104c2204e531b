"""SamplingParams: every parameter's range, contradictions, resolving against a model, and requests read from files."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.cli_sampling import sampling_overrides
from runtime.config import load_config
from runtime.errors import ConfigError, PromptError, SamplingError
from runtime.request_file import read_prompt_file, read_request_file
from runtime.request_seed import samples_of
from runtime.resolve_sampling import ParamsResolver
from runtime.sampling import SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": -2}, "top_k = -2: must be an integer in -1.."),
        ({"top_k": 1.0}, "top_k = 1.0: must be an integer"),
        ({"top_p": 0}, "top_p = 0: must be a number above 0, at most 1 (1 = off); 0 would leave no token"),
        ({"top_p": 1.01}, "top_p = 1.01: must be a number above 0, at most 1"),
        ({"top_p": float("nan")}, "top_p = nan"),
        ({"min_p": -0.1}, "min_p = -0.1: must be a number in 0..1"),
        ({"min_p": 2}, "min_p = 2: must be a number in 0..1"),
        ({"repetition_penalty": 0}, "repetition_penalty = 0: must be a number in 0.01..100 (1 = off)"),
        ({"presence_penalty": 2.1}, "presence_penalty = 2.1: must be a number in -2..2 (0 = off)"),
        ({"frequency_penalty": True}, "frequency_penalty = True: must be a number in -2..2"),
        ({"logit_bias": {5: 101}}, "logit_bias[5] = 101: must be a number in -100..100"),
        ({"logit_bias": {-1: 1}}, "logit_bias: token id = -1: must be an integer in 0.."),
        ({"logit_bias": {"x": 1}}, "logit_bias: token id = 'x'"),
        ({"logit_bias": [3]}, "logit_bias = [3]: must map token ids to numbers"),
        ({"logit_bias": "x"}, "logit_bias = 'x': must map token ids to numbers"),
        ({"logit_bias": [(3, 1), (3, 2)]}, "token id 3 stands twice"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias has 1025 ids: at most 1024"),
        ({"allowed_token_ids": []}, "allowed_token_ids = []: no token could ever be chosen"),
        ({"allowed_token_ids": [1.5]}, "allowed_token_ids[0] = 1.5"),
        ({"bad_words": [""]}, "bad_words[0] = '': must be a text that is not blank"),
        ({"bad_words": [[]]}, "bad_words[0] = []: must be a text that is not blank, or at least one token id"),
        ({"bad_words": [3]}, "bad_words[0] = 3: must be a list of token ids"),
        ({"bad_words": ["a"] * 129}, "bad_words has 129 texts or lists of token ids: at most 128"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output = 1: must be true or false"),
        ({"stop": ["\ud800"]}, "stop[0] = '\\ud800': must be UTF-8 text"),
        ({"bad_words": ["a", "\ud800"]}, "bad_words[1] = '\\ud800': must be UTF-8 text"),
        ({"logit_bias": {"9" * 5000: 1}}, "...: must be an integer in 0.."),
        ({"n": 0}, "n = 0: must be an integer in 1..64"),
        ({"n": 65, "temperature": 1}, "n = 65: must be an integer in 1..64"),
        ({"n": 2}, "n = 2: greedy sequences of one prompt are all the same"),
        ({"logprobs": 21}, "logprobs = 21: must be an integer in 0..20"),
        ({"logprobs": -1}, "logprobs = -1: must be an integer in 0..20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs = 21: must be an integer in 0..20"),
    ],
)
def test_parameters_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**fields)
    assert message in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    """They are kept as Python's, so that parameters can be hashed, compared and written as JSON."""
    given: dict[str, Any] = {"temperature": np.float32(0.5), "top_p": np.float64(0.25), "top_k": np.int64(7)}
    given |= {"seed": np.uint64(2**63 - 1), "max_tokens": np.int32(4), "stop_token_ids": np.arange(2)}
    given |= {"logit_bias": {np.int32(3): np.float16(0.5)}}
    params = SamplingParams(**given)
    assert params == SamplingParams(
        temperature=0.5, top_p=0.25, top_k=7, seed=2**63 - 1, max_tokens=4, stop_token_ids=(0, 1), logit_bias=((3, 0.5),)
    )
    kinds = {type(value) for value in (params.temperature, params.top_p, params.top_k, params.seed, *params.stop_token_ids)}
    assert kinds == {int, float}
    assert {type(number) for pair in params.logit_bias for number in pair} == {int, float}
    for name, value in (("temperature", np.float32("nan")), ("top_k", np.float32(1)), ("n", np.bool_(True)), ("top_p", np.ones(2))):
        with pytest.raises(SamplingError, match=rf"^{name} = "):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_k", "seed", "n"]
)
def test_an_integer_beyond_every_float_is_out_of_range(name: str, digits: int) -> None:
    for value in (10**digits, -(10**digits)):
        with pytest.raises(SamplingError, match=rf"^{name} = .{{1,60}}: must be ") as caught:
            SamplingParams(**{name: value})
        assert len(str(caught.value)) < 200
    with pytest.raises(SamplingError, match=r"^logit_bias\[1\] = .{1,60}: must be a number in -100\.\.100"):
        SamplingParams(logit_bias={1: 10**digits})  # type: ignore[arg-type]


def test_options_that_are_no_finite_numbers_keep_their_range() -> None:
    for value, text in ((float("nan"), ".nan"), (float("inf"), ".inf"), (float("-inf"), "-.inf")):
        assert sampling_overrides({"top_p": value, "seed": None}) == [f"sampling.top_p={text}"]


@pytest.mark.parametrize("text", ["END", "é", "\u2028", "\x7f\x85", "🐶", "a🐱\n\"'\\", "{x: 1}", "- 5", " ", "\ufeff"])
def test_a_stop_option_is_the_text_that_was_given(text: str) -> None:
    config = load_config({"model": {"source": "x"}}, sampling_overrides({"stop": [text]}))
    assert config.sampling.params().stop == (text,)


def test_what_callers_write_becomes_what_the_runtime_reads() -> None:
    params = SamplingParams(
        top_k=-1, logit_bias={"9": 1, 3: -2}, allowed_token_ids=[5, 3, 5], bad_words=["no", [1, 2]], stop="x"  # type: ignore[arg-type]
    )
    assert params.top_k == 0
    assert params.logit_bias == ((3, -2.0), (9, 1.0))
    assert params.allowed_token_ids == (3, 5)
    assert params.bad_words == ("no", (1, 2))
    assert params.stop == ("x",)
    hash(params)
    assert replace(params) == params


def test_fields_replace_parameters_and_unknown_names_are_refused() -> None:
    params = SamplingParams(temperature=0.5).with_fields({"top_p": 0.5, "logit_bias": {"4": 1}})
    assert (params.temperature, params.top_p, params.logit_bias) == (0.5, 0.5, ((4, 1.0),))
    with pytest.raises(SamplingError, match=r"top_q = 1: unknown parameter; did you mean top_p\?"):
        params.with_fields({"top_q": 1})
    with pytest.raises(SamplingError, match="9 = 1: unknown parameter; known are max_tokens, "):
        params.with_fields({9: 1})  # type: ignore[dict-item]
    with pytest.raises(SamplingError, match="top_q = an integer of thousands of digits: unknown parameter"):
        params.with_fields({"top_q": 10**5000})


@pytest.mark.parametrize("values", [None, 3, "top_p", ["top_p"], np.array(0.5)], ids=repr)
def test_what_are_no_fields(values: Any) -> None:
    with pytest.raises(SamplingError, match=r"^parameters = .*: must map their names to values"):
        SamplingParams().with_fields(values)


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias"])
def test_an_array_of_no_dimension_is_no_list(name: str) -> None:
    with pytest.raises(SamplingError, match=f"^{name} = array"):
        SamplingParams(**{name: np.array(5)})


def test_seeds_of_samples() -> None:
    params = SamplingParams(temperature=1, n=3, seed=7)
    first, second, third = samples_of(params)
    assert first == replace(params, n=1)
    assert len({first.seed, second.seed, third.seed}) == 3
    assert samples_of(params) == [first, second, third]
    assert [sample.seed for sample in samples_of(replace(params, seed=None))] == [None] * 3


class Words:
    """A tokenizer of words with and without a space in front of them."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        bare = {"cat": [10], "dog": [12, 13], "x": [15], "same": [17], "vast": [18, 19], "rare": [5, 6, 7]}
        spaced = {" cat": [11], " dog": [14, 13], " x": [16, 15], " same": [17], " vast": [3], " rare": [8, 9, 5, 7]}
        return (bare | spaced)[text]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cat"], ((10,), (11,))),
        ([" dog"], ((12, 13), (14, 13))),
        (["x"], ((15,),)),  # behind a space the same token follows one of the space alone
        (["vast"], ((18, 19), (3,))),  # one token behind a space, two without
        (["rare"], ((5, 6, 7), (8, 9, 5, 7))),
        (["same", [5, 6], "cat"], ((17,), (5, 6), (10,), (11,))),
        ([[5], [5]], ((5,),)),
    ],
)
def test_spellings_of_bad_words(words: list[Any], expected: tuple[tuple[int, ...], ...]) -> None:
    resolver = ParamsResolver(Words(), vocab_size=20, eos_token_ids=(2,))
    assert resolver.resolve(SamplingParams(bad_words=words)).bad_words == expected  # type: ignore[arg-type]


def test_bad_words_of_too_many_tokens() -> None:
    resolver = ParamsResolver(Words(), vocab_size=20, eos_token_ids=(2,))
    with pytest.raises(SamplingError, match=r"2 spellings of 1025 tokens, at most 128 of 1024"):
        resolver.resolve(SamplingParams(bad_words=[[5] * 1000, [6] * 25]))  # type: ignore[arg-type]


def test_a_vocabulary_is_counted_and_not_listed() -> None:
    """A set of its ids took 6 ms of every request. Here it would take more than there is memory."""
    resolver = ParamsResolver(Words(), vocab_size=10**12, eos_token_ids=(2,))
    params = SamplingParams(min_tokens=3, bad_words=[[5]])  # type: ignore[arg-type]
    assert resolver.resolve(params).bad_words == ((5,),)


@pytest.mark.parametrize(("vocab_size", "eos", "chosen"), [(4, (0, 1, 9), True), (4, (0, 1, 2), False), (3, (0, 1, 9), False)])
def test_ids_that_neither_end_a_request_nor_are_bad(vocab_size: int, eos: tuple[int, ...], chosen: bool) -> None:
    """Of the vocabulary's ids one is bad; the model's ends of text count as far as they are in it."""
    resolver = ParamsResolver(Words(), vocab_size=vocab_size, eos_token_ids=eos)
    params = SamplingParams(min_tokens=1, bad_words=[[2]] if chosen or vocab_size == 3 else [[3]])  # type: ignore[arg-type]
    with nullcontext() if chosen else pytest.raises(SamplingError, match="every allowed id that bad_words leaves ends the request"):
        resolver.resolve(params)


def test_commands_that_time_take_one_sequence() -> None:
    config = load_config({"model": {"source": "x"}, "sampling": {"n": 2, "temperature": 1}})
    with pytest.raises(ConfigError, match=r"sampling\.n = 2: prompts are timed with one sequence each; set sampling\.n to 1"):
        config.sampling.params_to_time()


# ---- request files -----------------------------------------------------------------------------------------------------


def test_lines_set_parameters_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    chat = [{"role": "user", "content": "hi"}]
    lines = ['{"prompt": "a", "temperature": 0.7, "seed": 4}', "plain {text}", '{"other": 1}', "", json.dumps({"prompt": chat})]
    path.write_text("\n".join(lines))
    requests = read_request_file(path)
    assert [request.prompt for request in requests] == ["a", "plain {text}", '{"other": 1}', chat]
    defaults = SamplingParams(max_tokens=5, seed=1)
    assert [request.params(defaults).seed for request in requests] == [4, 1, 1, 1]
    assert requests[0].params(defaults) == SamplingParams(max_tokens=5, seed=4, temperature=0.7)


def test_jsonl_and_json_hold_the_same_elements(tmp_path: Path) -> None:
    elements = ["text", [1, 2], [{"role": "user", "content": "hi"}], {"prompt": [3, 4], "top_k": 2}]
    (tmp_path / "a.json").write_text(json.dumps(elements))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, elements)))
    a, b = (read_request_file(tmp_path / name) for name in ("a.json", "a.jsonl"))
    assert [(request.prompt, request.fields) for request in a] == [(request.prompt, request.fields) for request in b]
    assert a[3].fields == {"top_k": 2}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '"x"\n{"prompt": ', "line 2: malformed JSON"),
        ("a.jsonl", '{"temperature": 1}', "line 1 = {'temperature': 1}: must be a text, a chat, token ids, or an object"),
        ("a.json", '[{"prompt": ""}]', "prompt 1: empty"),
        ("a.json", "[1.5]", "prompt 1 = 1.5: must be a text"),
        ("a.jsonl", "\n\n", "empty; write one prompt a line"),
        ("a.jsonl", '{"prompt": "x", "top_k": 1, "top_k": 2}', "line 1: malformed JSON: key 'top_k' is written twice"),
        ("a.jsonl", '{"prompt": "x", "logit_bias": {"1": 1, "1": 2}}', "key '1' is written twice"),
        ("a.jsonl", f'{{"prompt": "x", "top_k": 1{"0" * 5000}}}', "line 1: malformed JSON: a number of 5001 digits"),
        ("a.txt", 'x\n{"prompt": "x", "top_k": 1, "top_k": 2}', "line 2: malformed JSON: key 'top_k' is written twice"),
        ("a.txt", '{"top_k": 1, "prompt": "x"', "line 1: malformed JSON: "),
        ("a.txt", '[{"prompt": "x", "prompt": "y"}]', "malformed JSON: key 'prompt' is written twice"),
    ],
)
def test_files_that_hold_no_requests(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PromptError) as caught:
        read_request_file(tmp_path / name)
    assert message in str(caught.value)


def test_a_wrong_parameter_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('"fine"\n{"prompt": "x", "top_p": 7}')
    with pytest.raises(SamplingError, match=r"line 2: top_p = 7: must be a number above 0"):
        read_request_file(path)[1].params(SamplingParams())


def test_prompts_alone_refuse_parameters(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x", "seed": 7}')
    with pytest.raises(PromptError, match="line 1: sets seed, but every request here gets the same"):
        read_prompt_file(path)
