"""The tokenizer rebuilt from SmolLM2's GGUF, on the reference prompts of tests/oracle (ids by llama.cpp)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.chat import ChatTemplate
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.detokenizer import Detokenizer
from runtime.prompts import PromptEncoder
from runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.model

ORACLE = Path(__file__).parent / "oracle" / "smollm2_greedy.json"
CASES: list[dict[str, Any]] = json.loads(ORACLE.read_text("utf-8"))["cases"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


@pytest.fixture(scope="module")
def source(smollm2_path: Path) -> TokenizerSource:
    return open_checkpoint(smollm2_path).tokenizer


@pytest.fixture(scope="module")
def tokenizer(source: TokenizerSource) -> Tokenizer:
    return Tokenizer.from_source(source)


@each_case
def test_prompts_encode_to_the_reference_ids(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    ids = tokenizer.encode(case["chat_prompt"], add_special_tokens=False)
    assert ids == case["prompt_token_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == case["chat_prompt"]


@each_case
def test_a_user_turn_through_the_template_gives_the_same_ids(
    source: TokenizerSource, tokenizer: Tokenizer, case: dict[str, Any]
) -> None:
    assert source.chat_template is not None
    encoder = PromptEncoder(
        tokenizer, ChatTemplate(source.chat_template), vocab_size=tokenizer.vocab_size, max_model_len=8192
    )
    user = case["chat_prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    assert encoder.encode(user) == case["prompt_token_ids"]


@each_case
def test_the_reference_answer_streams_to_its_whole_text(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push([token]) for token in case["greedy_token_ids"]) + detokenizer.flush()
    assert text == tokenizer.decode(case["greedy_token_ids"])
    if case["name"] == "france":
        assert text.startswith("The capital of France is Paris.")


def test_what_the_model_ends_with(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert tokenizer.special_ids == set(range(17))
    assert 2 in tokenizer.eos_token_ids
    assert tokenizer.token_text(2) == "<|im_end|>"
