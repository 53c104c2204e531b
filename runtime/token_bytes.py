"""The bytes that each token of a vocabulary stands for.

Byte-level BPE writes every byte as one printable character (GPT-2's alphabet); SentencePiece vocabularies write a space
as U+2581 and a lone byte as <0xNN>. Both reduce to a table of bytes by id, which is all that decoding needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError, DamagedFileError
from runtime.shown_value import shown

SPACE_MARK = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SENTENCEPIECE_DECODERS = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
MAX_VOCABULARY = 1 << 22
"""Ids of a table at most: a damaged file could ask for all memory."""


@dataclass(frozen=True)
class TokenBytes:
    """table: bytes by token id; special_ids: control tokens; strip_first_space: the text's first token loses one
    leading space (SentencePiece adds it when encoding)."""

    table: Sequence[bytes]
    special_ids: frozenset[int]
    strip_first_space: bool = False

    def get(self, token: int, *, first: bool, skip_special_tokens: bool) -> bytes:
        """Bytes of one token, b"" for a skipped control token or an id past the table (padding of the embedding)."""
        if not 0 <= token < len(self.table) or (skip_special_tokens and token in self.special_ids):
            return b""
        piece = self.table[token]
        return piece[1:] if first and self.strip_first_space and piece.startswith(b" ") else piece


def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def byte_level_table(vocabulary: Sequence[str], raw_ids: frozenset[int]) -> list[bytes]:
    """Bytes by id of a byte-level vocabulary; tokens of `raw_ids` were added as plain text."""
    alphabet = byte_of_character()
    table = []
    for token, text in enumerate(vocabulary):
        # A token with a character outside the alphabet can only be plain text (an unused padding name, for one).
        plain = token in raw_ids or not all(character in alphabet for character in text)
        table.append(text.encode("utf-8", "replace") if plain else bytes(alphabet[character] for character in text))
    return table


def table_from_json(text: str, path: Path) -> TokenBytes:
    """The table of a tokenizer.json, which `tokenizers` has parsed already. Raises CheckpointError."""
    data = json.loads(text)
    kinds = set(_decoder_kinds(data.get("decoder")))
    byte_level = "ByteLevel" in kinds
    if not kinds or not (kinds <= {"ByteLevel"} or kinds <= SENTENCEPIECE_DECODERS):
        named = ", ".join(sorted(kinds)) or "none"
        raise CheckpointError(
            f"tokenizer = {path}: decoder {named} is not supported; use a model of byte-level BPE (ByteLevel) or SentencePiece BPE "
            f"({', '.join(sorted(SENTENCEPIECE_DECODERS))})"
        )
    added = {entry["id"]: entry for entry in data.get("added_tokens", [])}
    vocabulary = _vocabulary(data["model"].get("vocab"), added, path)
    special_ids = frozenset(token for token, entry in added.items() if entry.get("special"))
    raw_ids = frozenset(added)
    if byte_level:
        return TokenBytes(byte_level_table(vocabulary, raw_ids), special_ids)
    table = [
        text.encode("utf-8", "replace") if token in raw_ids else _sentencepiece_bytes(text)
        for token, text in enumerate(vocabulary)
    ]
    return TokenBytes(table, special_ids, strip_first_space=_strips_first_space(data["decoder"]))


def _vocabulary(vocab: object, added: dict[int, Any], path: Path) -> list[str]:
    if not isinstance(vocab, dict):
        raise CheckpointError(f"tokenizer = {path}: model.vocab must map tokens to ids, as it does in BPE; use another checkpoint")
    by_id = {token: text for text, token in vocab.items()} | {token: entry["content"] for token, entry in added.items()}
    largest = max(by_id, default=-1)
    if largest >= MAX_VOCABULARY:
        raise DamagedFileError(f"tokenizer = {path}", f"is corrupt: the id of token {shown(by_id[largest])} is {largest}")
    return [by_id.get(token, "") for token in range(largest + 1)]


def _decoder_kinds(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder is not None and decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _decoder_kinds(part)
    elif decoder is not None:
        yield decoder["type"]


def _sentencepiece_bytes(text: str) -> bytes:
    if match := BYTE_TOKEN.fullmatch(text):
        return bytes([int(match.group(1), 16)])
    return text.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def _strips_first_space(decoder: dict[str, Any]) -> bool:
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return any(
        (part["type"] == "Strip" and part.get("start", 0) > 0)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )
