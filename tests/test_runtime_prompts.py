"""Prompts and sampling parameters: what they may be, where they come from, and what a wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.chat import ChatTemplate
from runtime.errors import PromptError, SamplingError
from runtime.intake import Intake
from runtime.prompts import PromptEncoder, as_prompt_list
from runtime.request_file import read_prompt_file
from runtime.sampling import SamplingParams
from runtime.tokenizer import Tokenizer
from tests.test_runtime_tokenizer import tiny_source
from tests.tiny_checkpoint import CHAT_TEMPLATE

CHAT = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_source(tiny_source(add_bos=True))


def encoder(tokenizer: Tokenizer, template: str | None = CHAT_TEMPLATE, **changes: Any) -> PromptEncoder:
    options: dict[str, Any] = {"vocab_size": 320, "max_model_len": 64, **changes}
    return PromptEncoder(tokenizer, ChatTemplate(template) if template else None, **options)


def test_a_text_becomes_a_user_turn_when_there_is_a_template(tokenizer: Tokenizer) -> None:
    expected = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    ids = encoder(tokenizer).encode("the cat")
    assert ids == encoder(tokenizer).encode(CHAT) == tokenizer.encode(expected, add_special_tokens=False)


def test_a_text_is_continued_as_it_is_otherwise(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("the cat")
    assert plain[0] == tokenizer.bos_token_id
    assert encoder(tokenizer, None).encode("the cat") == plain
    assert encoder(tokenizer, chat=False).encode("the cat") == plain


def test_the_system_turn_goes_before_chats_that_have_none(tokenizer: Tokenizer) -> None:
    system = {"role": "system", "content": "the mat"}
    with_system = encoder(tokenizer, system="the mat")
    assert with_system.encode("the cat") == encoder(tokenizer).encode([system, *CHAT])
    assert with_system.encode([{"role": "system", "content": "x"}, *CHAT]) == encoder(tokenizer).encode(
        [{"role": "system", "content": "x"}, *CHAT]
    )
    with pytest.raises(PromptError, match=r"run\.system is set, but the model has no chat template"):
        encoder(tokenizer, None, system="x")


def test_token_ids_pass_as_they_are(tokenizer: Tokenizer) -> None:
    # The embedding may have more rows than the tokenizer has tokens.
    ids = encoder(tokenizer).encode(tuple(np.array([0, 5, 319], dtype=np.int32)))
    assert ids == [0, 5, 319]
    assert all(type(token) is int for token in ids)


@pytest.mark.parametrize("length", [63, 64])
def test_a_prompt_leaves_room_for_one_new_token(tokenizer: Tokenizer, length: int) -> None:
    if length < 64:
        assert len(encoder(tokenizer).encode([7] * length)) == length
    else:
        with pytest.raises(PromptError, match=r"64 tokens and one new token exceed max_model_len = 64"):
            encoder(tokenizer).encode([7] * length)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ("a\udcff", "invalid UTF-8 at character 1"),
        ([1, 2.5], "element 1 = 2.5 must be an integer token id"),
        ([1, "2"], "element 1 = '2' must be an integer token id"),
        ([True], "element 0 = True must be an integer token id"),
        ([5, 320], "token id 320 is outside the vocabulary of 320"),
        ([-1], "token id -1 is outside the vocabulary of 320"),
        (None, "must be a text, a chat"),
        (5, "must be a text, a chat"),
        (b"abc", "must be a text, a chat"),
        ([{"role": "user"}], "message 1 = {'role': 'user'}: must have exactly the keys role and content"),
        ([{"role": "user", "content": "x", "name": "y"}], "must have exactly the keys"),
        ([*CHAT, "x"], "message 2 = 'x': must have exactly the keys"),
        ([{"role": "user", "content": None}], "content = None must be a text"),
        ([{"role": "", "content": "x"}], "role is empty"),
        ([{"role": "user", "content": "\ud800"}], "message 1, content: invalid UTF-8"),
        ("the cat " * 40, "exceed max_model_len = 64"),
    ],
)
def test_a_wrong_prompt_is_named_by_its_number(tokenizer: Tokenizer, prompt: Any, message: str) -> None:
    with pytest.raises(PromptError) as caught:
        Intake(encoder(tokenizer), 4).requests(["the cat", prompt], SamplingParams())
    assert str(caught.value).startswith("prompt 2")
    assert message in str(caught.value)


def test_a_template_that_fails_names_the_prompt(tokenizer: Tokenizer) -> None:
    failing = encoder(tokenizer, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(PromptError, match="prompt 1: chat template failed: roles must alternate"):
        Intake(failing, 4).requests(["x"], SamplingParams())


def test_a_chat_without_a_template_is_told_what_to_do(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="no chat template; give a plain text prompt or token ids"):
        encoder(tokenizer, None).encode(CHAT)


@pytest.mark.parametrize(
    ("given_prompts", "expected"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (CHAT, [CHAT]),
        (["a", [1], CHAT], ["a", [1], CHAT]),
        (np.array([3, 4], dtype=np.int32), [[3, 4]]),
    ],
)
def test_one_prompt_or_several(given_prompts: Any, expected: Any) -> None:
    assert as_prompt_list(given_prompts) == expected


@pytest.mark.parametrize("unordered", [{5, 6}, frozenset(["a", "b"]), [{5, 6}]], ids=["ids", "texts", "a-prompt"])
def test_a_set_has_no_order(tokenizer: Tokenizer, unordered: Any) -> None:
    def encode() -> list[list[int]]:
        return [encoder(tokenizer, None).encode(prompt) for prompt in as_prompt_list(unordered)]

    with pytest.raises(PromptError, match="must be a text, a chat"):
        encode()


def test_no_prompt_at_all() -> None:
    with pytest.raises(PromptError, match="empty"):
        as_prompt_list([])


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.txt", "one\n\n  two words \r\n\tthree\n \n", ["one", "  two words ", "\tthree"]),
        ("p.txt", "\ufeffone", ["one"]),
        ("p.txt", "[INST] hi\nthere", ["[INST] hi", "there"]),
        ("p.txt", json.dumps(["a", [1, 2], CHAT]), ["a", [1, 2], CHAT]),
        ("p.json", json.dumps(["a\nb"]), ["a\nb"]),
        ("p.JSON", "[[1]]", [[1]]),
        ("p.yaml", "- a b\n- [1, 2]\n", ["a b", [1, 2]]),
        ("p.yml", "# by kind\nfact:\n- a\nstory:\n- b\n- c\n", ["a", "b", "c"]),
        ("p.txt", "a\u2028b\n", ["a\u2028b"]),
    ],
)
def test_prompt_files(tmp_path: Path, name: str, content: str, expected: list[Any]) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_prompt_file(path) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"", "empty"),
        ("p.txt", b" \n\n", "empty"),
        ("p.txt", b"fine\nbad \xff\xfe\n", "line 2: invalid UTF-8 at byte 9"),
        ("p.json", b"\xff", "line 1: invalid UTF-8"),
        ("p.json", b'["a",]', "malformed JSON: "),
        ("p.json", b"", "malformed JSON: "),
        ("p.json", b"[" * 200000, "malformed JSON: "),
        ("p.json", b'{"a": 1}', "must be a JSON list with at least one prompt"),
        ("p.yaml", b"", "must be a YAML list with at least one prompt"),
        ("p.yaml", b"fact: []\n", "must be a YAML list with at least one prompt"),
        ("p.yaml", b"fact: one\n", "must be a YAML list with at least one prompt"),
        ("p.yaml", b"a: [b\n", "YAML error at line 2"),
        ("p.yaml", b"fact: [a]\nfact: [b]\n", "key 'fact' is written twice"),
        ("p.yaml", b"- a\n- 5\n", "prompt 2"),
        ("p.json", b"[]", "must be a JSON list with at least one prompt"),
        ("p.json", b'["a", ""]', "prompt 2: empty"),
        ("p.json", b"[1, 2]", "prompt 1 = 1: must be a text, a chat"),
        ("p.json", b'["a", [1, "x"]]', "prompt 2: element 1 = 'x' must be an integer"),
        ("p.json", b'["\\ud800"]', "prompt 1: invalid UTF-8"),
    ],
)
def test_prompt_files_that_are_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PromptError) as caught:
        read_prompt_file(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_prompt_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such file"):
        read_prompt_file(tmp_path / "none.txt")
    with pytest.raises(PromptError, match="is a directory"):
        read_prompt_file(tmp_path)


# --- sampling parameters


def test_sampling_params_are_frozen_and_keep_tuples() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[3])  # type: ignore[arg-type]
    assert params == SamplingParams(stop=("a",), stop_token_ids=(3,))
    assert SamplingParams(stop="a") == SamplingParams(stop=("a",))  # type: ignore[arg-type]
    assert hash(params)
    with pytest.raises(AttributeError):
        params.max_tokens = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_tokens": 0}, "max_tokens = 0: must be an integer in 1.."),
        ({"max_tokens": 2.0}, "max_tokens = 2.0: must be an integer"),
        ({"max_tokens": True}, "max_tokens = True: must be an integer"),
        ({"min_tokens": -1}, "min_tokens = -1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens = 9: above max_tokens = 8"),
        ({"temperature": 0.009}, "temperature = 0.009: must be 0 or a number in 0.01..100"),
        ({"temperature": 101}, "temperature = 101: must be 0 or a number in 0.01..100"),
        ({"temperature": -1}, "temperature = -1: must be 0 or a number in"),
        ({"temperature": float("nan")}, "temperature = nan: must be 0 or a number in"),
        ({"temperature": "0"}, "temperature = '0'"),
        ({"seed": -1}, "seed = -1"),
        ({"stop": [""]}, "stop[0] = '': must be a string that is not empty"),
        ({"stop": [3]}, "stop[0] = 3"),
        ({"stop": 3}, "stop = 3: must be a list"),
        ({"stop": ["a"] * 17}, "at most 16"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0] = -1"),
        ({"stop_token_ids": "12"}, "stop_token_ids = '12': must be a list"),
        ({"stop_token_ids": [1] * 65}, "at most 64"),
        ({"ignore_eos": 1}, "ignore_eos = 1: must be true or false"),
    ],
)
def test_sampling_parameters_out_of_range(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**parameters)
    assert message in str(caught.value)
