"""Tokenizer: text to token ids and token ids to bytes, built with the `tokenizers` package.

From a GGUF the byte-level BPE is rebuilt from the file's own vocabulary, merges and pre-tokenizer name; from a Hugging
Face checkpoint tokenizer.json is read as it is. Decoding goes through bytes (runtime/token_bytes.py), so that a
stream of tokens and the whole sequence always give the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.errors import CheckpointError, DamagedFileError
from runtime.pre_tokenizers import BytePairRules, rules_for
from runtime.shown_value import shown
from runtime.token_bytes import TokenBytes, byte_level_table, table_from_json

CONTROL, USER_DEFINED = 3, 4  # gguf.TokenType


class Tokenizer:
    """The tokenizer of one checkpoint.

    vocab_size      ids are 0..vocab_size-1 (the model's embedding may have more rows than that)
    bos_token_id    id before a plain prompt, None when there is none
    eos_token_ids   ids that end a generation
    special_ids     control tokens, which are not part of the text
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, token_bytes: TokenBytes, source: TokenizerSource, *, prepend_bos: bool
    ) -> None:
        self._backend = backend
        self._bytes = token_bytes
        self._prefix = [source.bos_token_id] if prepend_bos and source.bos_token_id is not None else []
        self.vocab_size = len(token_bytes.table)
        self.bos_token_id = source.bos_token_id
        self.eos_token_ids = source.eos_token_ids
        self.special_ids = token_bytes.special_ids

    @classmethod
    def from_source(cls, source: TokenizerSource) -> Tokenizer:
        """Builds the tokenizer of a checkpoint. Raises CheckpointError for one that is unknown or broken."""
        tokenizer = _from_gguf(source) if source.kind == "gguf" else _from_json(source)
        for name, ids in (("bos_token_id", (source.bos_token_id,)), ("eos_token_ids", source.eos_token_ids)):
            for token in ids:
                if token is not None and not 0 <= token < tokenizer.vocab_size:
                    problem = f"outside its vocabulary of {tokenizer.vocab_size} tokens"
                    raise CheckpointError(f"tokenizer {name} = {token}: {problem}; remove its file and fetch it again")
        return tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written out in it become their ids.

        add_special_tokens: put what the model expects around a plain prompt (begin-of-text). False for the output of
        a chat template, which writes these tokens itself.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and ids[:1] != self._prefix:
            return self._prefix + ids
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD, one for each maximal invalid part (as HTML5 does)."""
        first, pieces = True, []
        for token in ids:
            pieces.append(self.token_bytes(token, first=first, skip_special_tokens=skip_special_tokens))
            first = first and not pieces[-1]
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token: int, *, first: bool = False, skip_special_tokens: bool = True) -> bytes:
        """Bytes that one token adds to the text; `first`: nothing precedes it. An id past the vocabulary adds none."""
        return self._bytes.get(token, first=first, skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int | None) -> str:
        """A token as the vocabulary spells it, e.g. "<|im_end|>"; "" for None or an unknown id."""
        return "" if token is None else self._backend.id_to_token(token) or ""


def _from_gguf(source: TokenizerSource) -> Tokenizer:
    rules = rules_for(source.pre)
    vocabulary = {text: token for token, text in enumerate(source.vocabulary)}
    if len(vocabulary) != len(source.vocabulary):
        twice = next(text for token, text in enumerate(source.vocabulary) if vocabulary[text] != token)
        raise CheckpointError(f"tokenizer vocabulary: {shown(twice)} stands in it twice; remove its file and fetch it again")
    if len(source.token_types) not in (0, len(source.vocabulary)):
        counts = f"{len(source.token_types)} entries, the vocabulary {len(source.vocabulary)}"
        raise CheckpointError(f"tokenizer token_types has {counts}; remove its file and fetch it again")
    backend = _byte_pair_backend(vocabulary, source.merges, rules)
    added = [(token, kind) for token, kind in enumerate(source.token_types) if kind in (CONTROL, USER_DEFINED)]
    # `normalized=False`: these tokens are found in the text as it was written.
    backend.add_tokens(
        [AddedToken(source.vocabulary[token], special=kind == CONTROL, normalized=False) for token, kind in added]
    )
    special_ids = frozenset(token for token, kind in added if kind == CONTROL)
    table = byte_level_table(source.vocabulary, raw_ids=frozenset(token for token, _ in added))
    return Tokenizer(backend, TokenBytes(table, special_ids), source, prepend_bos=source.add_bos)


def _byte_pair_backend(vocabulary: dict[str, int], merges: Sequence[str], rules: BytePairRules) -> tokenizers.Tokenizer:
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            problem = f"{shown(merge)} must be two tokens with a space between"
            raise CheckpointError(f"tokenizer merges: {problem}; remove its file and fetch it again")
        pairs.append((left, right))
    try:
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rules.ignore_merges)
    except Exception as error:  # `tokenizers` raises bare Exception for a merge of tokens that do not exist.
        raise CheckpointError(f"tokenizer merges do not fit its vocabulary: {error}; remove its file and fetch it again") from error
    backend = tokenizers.Tokenizer(model)
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _from_json(source: TokenizerSource) -> Tokenizer:
    path = source.tokenizer_json
    if path is None:
        raise CheckpointError("tokenizer: the checkpoint has no tokenizer.json; add the file to its folder")
    try:
        text = path.read_text("utf-8")
        backend = tokenizers.Tokenizer.from_str(text)
    except OSError as error:
        raise CheckpointError(f"tokenizer = {path}: cannot be read: {error.strerror}; make it readable") from error
    except Exception as error:  # `tokenizers` raises bare Exception for a file that it does not understand.
        raise DamagedFileError(f"tokenizer = {path}", f"not a valid tokenizer.json: {error}") from error
    # Some files carry the truncation and padding of a training run; a prompt is never cut or filled silently.
    backend.no_truncation()
    backend.no_padding()
    # The post-processor of the file puts begin-of-text where the model expects it.
    return Tokenizer(backend, table_from_json(text, path), source, prepend_bos=False)
