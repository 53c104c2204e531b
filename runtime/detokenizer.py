"""Detokenizer: text as tokens arrive, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from runtime.tokenizer import Tokenizer


class Detokenizer:
    """Turns the tokens of one request into pieces of text.

    The bytes of a character can be spread over several tokens; a piece ends before a character that is not complete.
    The pieces joined, with `flush` at the end, equal `tokenizer.decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._nothing_yet = True
        self._inside_character = False

    def push(self, tokens: Iterable[int]) -> str:
        """Text that these tokens complete, "" when there is none yet."""
        raw, skip = b"", self._skip_special_tokens
        for token in tokens:
            raw += self._tokenizer.token_bytes(token, first=self._nothing_yet and not raw, skip_special_tokens=skip)
        if not raw:
            return ""
        self._nothing_yet = False
        if raw.isascii() and not self._inside_character:
            return raw.decode("ascii")  # most text is; the decoder below is written in Python
        text = self._decoder.decode(raw)
        self._inside_character = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became complete, else ""."""
        return self._decoder.decode(b"", final=True)
