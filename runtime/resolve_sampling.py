"""Parameters of a request against a model: texts of bad words become token ids, and every id is in the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from runtime.errors import SamplingError
from runtime.sampling import SamplingParams
from runtime.sampling_checks import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS


class Encoder(Protocol):
    """What resolving needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class ParamsResolver:
    """Fits parameters to one model.

    Args:
        tokenizer: turns bad words into token ids.
        vocab_size: ids of the target's logits.
        eos_token_ids: the model's own end-of-text ids.
    """

    def __init__(self, tokenizer: Encoder, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)

    def resolve(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, bad words as token ids.

        Raises:
            SamplingError: an id outside the vocabulary, or masks that leave no token to choose.
        """
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logit_bias", (token for token, _ in params.logit_bias))
        spelled = tuple(dict.fromkeys(ids for word in params.bad_words for ids in self._spellings(word)))
        self._check_ids("bad_words", (token for ids in spelled for token in ids))
        if len(spelled) > MAX_BAD_WORDS or sum(map(len, spelled)) > MAX_BAD_WORD_TOKENS:
            raise SamplingError(
                f"bad_words: {len(spelled)} spellings of {sum(map(len, spelled))} tokens, at most {MAX_BAD_WORDS} of "
                f"{MAX_BAD_WORD_TOKENS} tokens together are allowed; name fewer"
            )
        self._check_masks(params, spelled)
        return params if spelled == params.bad_words else replace(params, bad_words=spelled)

    def _spellings(self, word: str | tuple[int, ...]) -> list[tuple[int, ...]]:
        """Token ids of a word at the beginning of a text and behind a space.

        vLLM leaves out the second where it has another number of tokens, and so lets a word pass that only behind a space is one.
        """
        if not isinstance(word, str):
            return [word]
        bare = tuple(self._tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(self._tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        # Where it ends in the bare one, such as behind a token of the space alone, that one forbids it already.
        ends_in_bare = len(spaced) >= len(bare) and spaced[len(spaced) - len(bare) :] == bare
        return [ids for ids in (bare, () if ends_in_bare else spaced) if ids]

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        for token in ids:
            if token >= self._vocab_size:
                raise SamplingError(
                    f"{name}: token id {token} is outside the vocabulary of {self._vocab_size} (ids 0..{self._vocab_size - 1})"
                )

    def _check_masks(self, params: SamplingParams, bad_words: Sequence[tuple[int, ...]]) -> None:
        banned = {ids[0] for ids in bad_words if len(ids) == 1}
        if not self._num_left(params, banned):
            raise SamplingError(
                f"bad_words: they forbid every one of the {self._num_left(params, set())} allowed ids, so that no token could ever "
                "be chosen; allow more ids or forbid fewer"
            )
        if params.min_tokens == 0:
            return
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)}
        if not self._num_left(params, banned | stops):
            left = "every allowed id that bad_words leaves" if banned else "every allowed id"
            raise SamplingError(
                f"min_tokens = {params.min_tokens}: {left} ends the request, so that none could be chosen before; "
                "allow an id that does not, or set min_tokens to 0"
            )

    def _num_left(self, params: SamplingParams, excluded: set[int]) -> int:
        """How many ids may be chosen without `excluded`. A vocabulary is counted, not listed: this runs once for each request."""
        if params.allowed_token_ids is not None:
            return len(set(params.allowed_token_ids) - excluded)
        return self._vocab_size - sum(token < self._vocab_size for token in excluded)
