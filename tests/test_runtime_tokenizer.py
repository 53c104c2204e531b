"""Tokenizer and chat template: ids equal the model's own, broken vocabularies are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from runtime.chat import ChatTemplate
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.errors import CheckpointError, PromptError
from runtime.pre_tokenizers import RULES, rules_for
from runtime.token_bytes import byte_of_character
from runtime.tokenizer import Tokenizer
from tests.tiny_checkpoint import CHAT_TEMPLATE, SPECIAL_TOKENS, tiny_tokenizer

TEXTS = st.text(max_size=40) | st.text(alphabet="the cat sat on 123\n\t '", max_size=60)


def tiny_source(**changes: Any) -> TokenizerSource:
    """The tiny tokenizer as a GGUF carries it."""
    data = json.loads(tiny_tokenizer().to_str())
    vocabulary = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    source = TokenizerSource(
        kind="gguf",
        vocabulary=vocabulary,
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]],
        token_types=[3 if token in SPECIAL_TOKENS else 1 for token in vocabulary],
        pre="smollm",
        chat_template=CHAT_TEMPLATE,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    return replace(source, **changes)


def json_source(folder: Path, backend: Backend, **changes: Any) -> TokenizerSource:
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return TokenizerSource(kind="json", tokenizer_json=path, bos_token_id=1, eos_token_ids=(2,), **changes)


@pytest.fixture(scope="module")
def gguf() -> Tokenizer:
    return Tokenizer.from_source(tiny_source())


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@example("Año 2024: ½ naïve 日本 🙂 <|im_start|>user\n  x")
def test_rebuilt_from_gguf_it_equals_the_original(gguf: Tokenizer, text: str) -> None:
    original = tiny_tokenizer_once()
    ids = gguf.encode(text)
    assert ids == original.encode(text).ids
    for skip in (True, False):
        assert gguf.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip)


_ORIGINAL: list[Backend] = []


def tiny_tokenizer_once() -> Backend:
    if not _ORIGINAL:
        _ORIGINAL.append(tiny_tokenizer())
    return _ORIGINAL[0]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 299), max_size=30))
def test_any_ids_decode_as_the_original_does(gguf: Tokenizer, ids: list[int]) -> None:
    assert gguf.decode(ids) == tiny_tokenizer_once().decode(ids)


def test_gguf_and_json_agree(gguf: Tokenizer, tmp_path: Path) -> None:
    other = Tokenizer.from_source(json_source(tmp_path, tiny_tokenizer()))
    text = "the cat <|im_end|> 42 🙂"
    assert other.encode(text) == gguf.encode(text)
    assert other.decode(other.encode(text)) == gguf.decode(gguf.encode(text))
    assert other.vocab_size == gguf.vocab_size == 300
    assert other.special_ids == gguf.special_ids == {0, 1, 2}
    assert other.eos_token_ids == (2,)
    assert other.token_text(2) == "<|im_end|>"
    assert other.token_text(None) == other.token_text(9999) == ""


def test_begin_of_text_comes_once_and_only_when_the_model_wants_it() -> None:
    with_bos = Tokenizer.from_source(tiny_source(add_bos=True))
    plain = with_bos.encode("the cat", add_special_tokens=False)
    assert with_bos.encode("the cat") == [1, *plain]
    assert with_bos.encode("<|im_start|>the cat") == [1, *plain]
    assert Tokenizer.from_source(tiny_source()).encode("the cat") == plain


def test_begin_of_text_of_a_tokenizer_json_comes_from_its_post_processor(tmp_path: Path) -> None:
    backend = tiny_tokenizer()
    plain = backend.encode("the cat").ids
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", pair=None, special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer = Tokenizer.from_source(json_source(tmp_path, backend, add_bos=True))
    assert tokenizer.encode("the cat") == [1, *plain]
    assert tokenizer.encode("the cat", add_special_tokens=False) == plain


def test_truncation_and_padding_of_a_training_run_are_dropped(tmp_path: Path) -> None:
    backend = tiny_tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.from_source(json_source(tmp_path, backend))
    assert tokenizer.encode("the cat sat on the mat") == tiny_tokenizer().encode("the cat sat on the mat").ids


def test_user_defined_tokens_are_text_and_control_tokens_are_not() -> None:
    source = tiny_source()
    vocabulary = [*source.vocabulary, "<think> é"]
    tokenizer = Tokenizer.from_source(
        tiny_source(vocabulary=vocabulary, token_types=[*source.token_types, 4], bos_token_id=None)
    )
    ids = tokenizer.encode("a<think> é<|im_end|>")
    assert ids[-2:] == [300, 2]
    assert tokenizer.decode(ids) == "a<think> é"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<think> é<|im_end|>"


def test_ids_past_the_vocabulary_add_no_text(gguf: Tokenizer) -> None:
    assert gguf.decode([300, 9999]) == ""


def test_invalid_bytes_become_replacement_characters(gguf: Tokenizer) -> None:
    character_of = {byte: character for character, byte in byte_of_character().items()}
    ids = [gguf._backend.token_to_id(character_of[byte]) for byte in b"a\xf0\x9f\x99b\xff"]
    assert gguf.decode(ids) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt2", ["I", "'ll", "Ġsee", "Ġ2024", "Ċ", "Ċ", "X"]),
        ("default", ["I", "'ll", "Ġsee", "Ġ2024", "Ċ", "Ċ", "X"]),
        ("", ["I", "'ll", "Ġsee", "Ġ2024", "Ċ", "Ċ", "X"]),
        ("smollm", ["I", "'ll", "Ġsee", "Ġ", "2", "0", "2", "4", "Ċ", "Ċ", "X"]),
        ("llama-bpe", ["I", "'ll", "Ġsee", "Ġ", "202", "4", "ĊĊ", "X"]),
        ("qwen2", ["I", "'ll", "Ġsee", "Ġ", "2", "0", "2", "4", "ĊĊ", "X"]),
    ],
)
def test_pre_tokenizers_split_as_their_models_do(pre: str, pieces: list[str]) -> None:
    split = rules_for(pre).pre_tokenizer().pre_tokenize_str("I'll see 2024\n\nX")
    assert [piece for piece, _ in split] == pieces


def test_pre_tokenizers_differ_where_their_models_differ() -> None:
    def pieces(pre: str, text: str) -> list[str]:
        return [piece for piece, _ in rules_for(pre).pre_tokenizer().pre_tokenize_str(text)]

    # Llama 3 and Qwen2 keep a symbol with the word after it and read contractions in capitals.
    assert pieces("llama-bpe", "(word I'LL") == ["(word", "ĠI", "'LL"]
    assert pieces("gpt2", "(word I'LL") == ["(", "word", "ĠI", "'", "LL"]
    assert rules_for("llama-bpe").ignore_merges
    assert not rules_for("smollm").ignore_merges
    assert rules_for("qwen2").nfc


def test_qwen2_text_is_composed_first() -> None:
    composed, decomposed = "é", "e\u0301"
    tokenizer = Tokenizer.from_source(tiny_source(pre="qwen2"))
    assert tokenizer.encode(decomposed) == tokenizer.encode(composed)
    assert Tokenizer.from_source(tiny_source()).encode(decomposed) != tokenizer.encode(composed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "tekken"}, f"'tekken': unknown pre-tokenizer; use a model of {', '.join(sorted(RULES))}"),
        ({"merges": ["a\u2603 b"]}, "merges do not fit its vocabulary"),
        ({"merges": ["ab"]}, "'ab' must be two tokens"),
        ({"vocabulary": ["a", "a"], "merges": [], "token_types": []}, "'a' stands in it twice"),
        ({"token_types": [1, 1]}, "token_types has 2 entries, the vocabulary 300"),
        ({"bos_token_id": 300}, "bos_token_id = 300: outside its vocabulary of 300"),
        ({"eos_token_ids": (2, -1)}, "eos_token_ids = -1: outside"),
        ({"kind": "json"}, "no tokenizer.json"),
    ],
)
def test_broken_sources_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_source(tiny_source(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "1.0"}', b"\xff\xfe"])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not a valid tokenizer\.json"):
        Tokenizer.from_source(TokenizerSource(kind="json", tokenizer_json=path))


def test_a_tokenizer_json_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_source(TokenizerSource(kind="json", tokenizer_json=tmp_path / "none.json"))


def test_an_unknown_decoder_or_model_is_refused(tmp_path: Path) -> None:
    backend = tiny_tokenizer()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="decoder WordPiece is not supported"):
        Tokenizer.from_source(json_source(tmp_path, backend))
    unigram = Backend(models.Unigram([("a", 0.0), ("b", -1.0)], unk_id=0))
    unigram.decoder = decoders.Metaspace()
    with pytest.raises(CheckpointError, match="must map tokens to ids"):
        Tokenizer.from_source(json_source(tmp_path, unigram))


def sentencepiece_backend() -> Backend:
    """BPE as Llama 2 has it: U+2581 for a space, byte fallback, a space put before the text."""
    characters = ["▁", *"abc", "é"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters, "▁a", "ab"]
    backend = Backend(
        models.BPE(
            vocab={token: index for index, token in enumerate(vocabulary)},
            merges=[("▁", "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


@pytest.mark.parametrize("text", ["ab c", "aé b", "🙂 ab", "日本", "a  b "])
def test_sentencepiece_text_survives_the_round_trip(tmp_path: Path, text: str) -> None:
    backend = sentencepiece_backend()
    tokenizer = Tokenizer.from_source(json_source(tmp_path, backend))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text == backend.decode(ids)
    assert tokenizer.decode([1, *ids, 2]) == text


# --- chat template


def test_chat_template_writes_the_turns_and_opens_the_answer() -> None:
    template = ChatTemplate(CHAT_TEMPLATE)
    text = template.render([{"role": "user", "content": "Hi {{ x }}"}])
    assert text == "<|im_start|>user\nHi {{ x }}<|im_end|>\n<|im_start|>assistant\n"


def test_chat_template_gets_what_hugging_face_gives_it() -> None:
    source = (
        "{{ bos_token }}{%- for m in messages %}\n    {%- if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "    {%- generation %}{{ m | tojson }}{% endgeneration %}\n{%- endfor %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}{{ eos_token }}"
    )
    text = ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        [{"role": "skip", "content": "x"}, {"role": "user", "content": "<é>"}]
    )
    assert text == '<s>{"role": "user", "content": "<é>"}4True</s>'


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% unknown %}", "{% generation %}"])
def test_a_template_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(PromptError, match=r"chat template: cannot be read.*run\.chat"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('only user turns') }}", "only user turns"),
        ("{{ messages[5].content.upper() }}", "chat template failed"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat template failed"),
        ("{{ messages.append(1) }}", "chat template failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(10000000) %}{% endfor %}", "chat template failed"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_stopped(source: str, message: str) -> None:
    with pytest.raises(PromptError) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert message in str(caught.value)
