"""What the toy target and the toy drafters mean, in plain Python and apart from their kernels: the oracle of the gates."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.toy import ACCEPT, NO_DRAFT
from runtime.checkpoint.tokenizer_source import TokenizerSource
from runtime.plan import FinishReason
from runtime.sampling import SamplingParams

CHARACTERS = "0abcdefghijklmnopqrstuvwxyzABCDE"
"""The text of each token id, one character each; id 0 is never produced."""


def toy_tokenizer_source() -> TokenizerSource:
    """A vocabulary of 32 tokens of one character each, so that stop strings have something to match."""
    return TokenizerSource("gguf", vocabulary=list(CHARACTERS), token_types=[1] * len(CHARACTERS), pre="smollm")


def text_of(tokens: Sequence[int]) -> str:
    return "".join(CHARACTERS[token] for token in tokens)


class Prefix:
    """A growing sequence of tokens, and what the target says next.

    Of its last token, its length and a checksum of all of it; without `memory` of its last token alone.
    """

    def __init__(self, tokens: Sequence[int], memory: bool) -> None:
        self.tokens: list[int] = []
        self._memory, self._checksum = memory, 0
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._checksum += len(self.tokens) * token

    def next(self) -> int:
        if not self._memory:
            return 7 * self.tokens[-1] % 31 + 1
        return (7 * self.tokens[-1] + 3 * len(self.tokens) + self._checksum) % 31 + 1


def next_token(prefix: Sequence[int], memory: bool) -> int:
    """The token after `prefix`."""
    return Prefix(prefix, memory).next()


def continuation(prompt: Sequence[int], length: int, memory: bool) -> list[int]:
    """`prompt` and what the target makes of it, one token at a time, up to `length` tokens in all."""
    prefix = Prefix(prompt, memory)
    while len(prefix.tokens) < length:
        prefix.append(prefix.next())
    return prefix.tokens


def ends_of(params: SamplingParams, eos_token_ids: Sequence[int]) -> set[int]:
    """Token ids that end a request: its own, and the model's unless it ignores them."""
    return {*params.stop_token_ids} if params.ignore_eos else {*params.stop_token_ids, *eos_token_ids}


def sequential_decode(
    prompt: Sequence[int], params: SamplingParams, max_model_len: int, memory: bool, eos_token_ids: Sequence[int] = ()
) -> tuple[list[int], FinishReason]:
    """The oracle of a request: one token at a time, no speculation, no batch, no cache. -> tokens, why it ended."""
    prefix, ends = Prefix(prompt, memory), ends_of(params, eos_token_ids)
    while True:
        prefix.append(prefix.next())
        output = prefix.tokens[len(prompt) :]
        armed = len(output) >= params.min_tokens
        if armed and (output[-1] in ends or any(stop in text_of(output) for stop in params.stop)):
            return output, "stop"
        if len(output) == params.max_tokens or len(prefix.tokens) == max_model_len:
            return output, "length"


def scripted_drafts(prefix: Sequence[int], script: Sequence[int], k: int, memory: bool) -> list[int]:
    """k drafts behind `prefix`: each right, wrong or missing (-1) as the script says at its position; none behind a missing one."""
    grown, drafts = Prefix(prefix, memory), list[int]()
    for _ in range(k):
        verdict = script[len(grown.tokens) % len(script)]
        if verdict == NO_DRAFT or -1 in drafts:
            drafts.append(-1)
            continue
        truth = grown.next()
        grown.append(truth)
        drafts.append(truth if verdict == ACCEPT else truth % 31 + 1)
    return drafts


def overruled_drafts(drafts: Sequence[int], prefix: Sequence[int], script: Sequence[int], memory: bool) -> list[int]:
    """The drafts of a drafter behind `prefix`, but the truth where the script accepts."""
    grown, result = Prefix(prefix, memory), list[int]()
    for draft in drafts:
        verdict, truth = script[len(grown.tokens) % len(script)], grown.next()
        grown.append(truth)
        result.append(truth if draft >= 0 and verdict == ACCEPT else draft)
    return result


def lookup_drafts(prefix: Sequence[int], k: int, *, min_n: int, max_n: int) -> list[int]:
    """k drafts by prompt lookup: what followed the earliest occurrence of the longest suffix that occurs before; -1 behind them."""
    for n in range(min(max_n, len(prefix) - 1), min_n - 1, -1):
        suffix = list(prefix[-n:])
        for end in range(n, len(prefix)):
            if list(prefix[end - n : end]) == suffix:
                found = list(prefix[end : end + k])
                return found + [-1] * (k - len(found))
    return [-1] * k
