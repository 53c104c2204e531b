"""Detokenizer and stop strings: whatever the pieces, the joined text is the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.detokenizer import Detokenizer
from runtime.stop_strings import StopStrings
from runtime.token_bytes import TokenBytes, byte_of_character
from runtime.tokenizer import Tokenizer

CHARACTER_OF = {byte: character for character, byte in byte_of_character().items()}


def spelled(raw: bytes) -> str:
    return "".join(CHARACTER_OF[byte] for byte in raw)


# Ids 0..255 are single bytes; then tokens that cut through characters, whole words, and two control tokens.
CUTS = [
    "日".encode()[:2], "日".encode()[2:] + "本".encode()[:1], "🙂".encode()[:3], b"\xf0\x9f", b"the", b" the",
    "e\u0301".encode(), "👩\u200d👩".encode()[:5], b"\xff\xfe", b"",
]  # fmt: skip
VOCABULARY = [*(spelled(bytes([byte])) for byte in range(256)), *map(spelled, CUTS), "<|end|>", "<|pad|>"]
CONTROL_IDS = [len(VOCABULARY) - 2, len(VOCABULARY) - 1]
TOKENIZER = Tokenizer.from_source(
    TokenizerSource(
        kind="gguf",
        vocabulary=VOCABULARY,
        token_types=[3 if token in CONTROL_IDS else 1 for token in range(len(VOCABULARY))],
        pre="gpt2",
    )
)
CHARACTERS = st.text(alphabet="aé日本語🙂👩\u200d\u0301\u00a0\ufffd\n", max_size=12)
TOKENS = st.one_of(
    st.lists(st.integers(0, len(VOCABULARY) + 3), max_size=24),
    CHARACTERS.map(lambda text: list(text.encode())),
)
# Lengths of the pieces: one token a step, or a block of verified drafts.
STEPS = st.lists(st.integers(1, 8), min_size=1, max_size=24)


def in_steps(tokens: list[int], steps: list[int]) -> list[list[int]]:
    pieces, start = [], 0
    for step in steps * (len(tokens) + 1):
        if start >= len(tokens):
            break
        pieces.append(tokens[start : start + step])
        start += step
    return pieces


@settings(max_examples=300, deadline=None)
@given(tokens=TOKENS, steps=STEPS, skip=st.booleans())
@example(tokens=[0xF0, 0x9F, CONTROL_IDS[0], 0x99, 0x82], steps=[1], skip=True)
@example(tokens=[0xE2, 0x82], steps=[1], skip=True)
def test_joined_pieces_equal_the_whole(tokens: list[int], steps: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip)
    pieces = [detokenizer.push(piece) for piece in in_steps(tokens, steps)]
    assert "".join(pieces) + detokenizer.flush() == TOKENIZER.decode(tokens, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(text=CHARACTERS, steps=STEPS)
def test_a_character_is_never_split(text: str, steps: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    shown = ""
    for piece in in_steps(list(text.encode()), steps):
        shown += detokenizer.push(piece)
        assert text.startswith(shown)
    assert detokenizer.flush() == ""
    assert shown == text


def test_text_appears_as_soon_as_its_character_is_complete() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([byte]) for byte in "é🙂a".encode()] == ["", "é", "", "", "", "🙂", "a"]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([*b"ok", 0xF0, 0x9F]) == "ok"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_the_space_before_a_sentencepiece_text_goes_once() -> None:
    table = [b" a", b" ", b"b", b""]
    tokenizer = Tokenizer(
        None,  # type: ignore[arg-type]  # decoding needs no backend
        TokenBytes(table, frozenset({3}), strip_first_space=True),
        TokenizerSource(kind="json"),
        prepend_bos=False,
    )
    for tokens in ([3, 0, 0], [1, 1, 2], [0], [1], [2, 0]):
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.push([token]) for token in tokens]
        assert "".join(pieces) == tokenizer.decode(tokens)
    assert tokenizer.decode([3, 0, 0]) == "a a"


# --- stop strings


def cut_by_hand(text: str, stops: list[str]) -> tuple[str, str | None]:
    """One character at a time: the first stop string to be complete, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="ab\n", max_size=24),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
    steps=STEPS,
)
@example(text="abcd", stops=["abcd", "c"], steps=[4])
@example(text="aab", stops=["ab"], steps=[1])
def test_stop_strings_do_not_depend_on_the_pieces(text: str, stops: list[str], steps: list[int]) -> None:
    expected, matched = cut_by_hand(text, stops)
    matcher = StopStrings(stops)
    shown, start = "", 0
    for step in steps * (len(text) + 1):
        shown += matcher.push(text[start : start + step])
        assert expected.startswith(shown)
        start += step
    shown += matcher.flush()
    assert (shown, matcher.matched) == (expected, matched)


@pytest.mark.parametrize("stops", [[], ["\n\n"]])
def test_text_that_cannot_begin_a_stop_string_is_not_held(stops: list[str]) -> None:
    matcher = StopStrings(stops)
    assert matcher.push("hello\nworld") == "hello\nworld"
    assert matcher.matched is None


def test_nothing_comes_after_a_match() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("a E") == "a "
    assert matcher.push("ND b") == ""
    assert matcher.matched == "END"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""
