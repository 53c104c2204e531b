"""SamplingParams: what one request asks of the decoder, validated once, before it reaches the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from runtime import sampling_checks as checks
from runtime.errors import SamplingError
from runtime.sampling_checks import MAX_STOP_TOKEN_IDS, Word
from runtime.shown_value import shown

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100
MAX_N = 64
MAX_LOGPROBS = 20
"""The constant of kernels/logprobs.py, repeated so that parameters can be checked before Numba is imported."""

_NUMBERS = (
    ("min_p", 0, 1, 0),
    ("repetition_penalty", 0.01, 100, 1),
    ("presence_penalty", -2, 2, 0),
    ("frequency_penalty", -2, 2, 0),
)
"""Name, least, most, and the value that is off."""

__all__ = ["MAX_LOGPROBS", "MAX_STOP_TOKEN_IDS", "SamplingParams"]


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request. Greedy decoding takes the token of the largest logit, the lowest id on a tie.

    How long:
    max_tokens          tokens to produce at most, >= 1; a request also ends when it reaches max_model_len
    min_tokens          end-of-text and stop ids cannot be chosen until this many tokens exist, and stop strings are ordinary text,
                        0..max_tokens
    stop                strings that end the request; the text ends before the first of them
    include_stop_str_in_output  the text ends behind it instead
    stop_token_ids      token ids that end the request, besides the model's own end-of-text ids
    ignore_eos          do not end at the model's end-of-text ids (stop ids and strings still count)

    Which token, in the order in which it is applied (as in vLLM):
    logit_bias          token id -> number in -100..100 that is added to its logit
    repetition_penalty  0.01..100, 1 = off: ids of prompt and output have positive logits divided by it, others multiplied
    frequency_penalty   -2..2, 0 = off: subtracted once for each time the output holds the id
    presence_penalty    -2..2, 0 = off: subtracted once if the output holds the id
    allowed_token_ids   only these ids can be chosen; None = all
    bad_words           texts, or lists of token ids, that the output never completes
    temperature         0: greedy; 0.01..100: tokens are drawn from the softmax of logits / temperature
    min_p               0..1, 0 = off: drops tokens less than min_p times as likely as the best
    top_k               0 or -1 = off: keeps the k most likely tokens, and equals of the last of them
    top_p               above 0, at most 1, 1 = off: keeps the most likely tokens until they are top_p likely together
    seed                of a sampled run; None: one of the engine's own. A greedy run gives the same tokens for every seed

    What comes back:
    n                   sequences of the prompt, 1..64, each sampled with a seed of its own
    logprobs            None, or 0..20: log probability and rank of each token, and of that many most likely tokens at its place,
                        under the model itself (before everything above)
    prompt_logprobs     the same of each token of the prompt but the first, given those before it

    Raises SamplingError, naming the parameter, its value and the limit.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[Word, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        # Lists and mappings are what callers write; the dataclass keeps tuples so that it stays hashable and frozen in depth.
        self._keep("stop", checks.stop_strings(self.stop))
        self._keep("stop_token_ids", checks.token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS))
        self._keep("allowed_token_ids", checks.allowed_ids(self.allowed_token_ids))
        self._keep("bad_words", checks.bad_words(self.bad_words))
        self._keep("logit_bias", checks.logit_bias(self.logit_bias))
        self._keep("top_k", max(checks.check_int("top_k", self.top_k, low=-1), 0))
        self._keep("max_tokens", checks.check_int("max_tokens", self.max_tokens, low=1))
        self._keep("min_tokens", checks.check_int("min_tokens", self.min_tokens, low=0))
        self._keep("seed", checks.check_optional_int("seed", self.seed, low=0, high=2**63 - 1))
        self._keep("temperature", checks.check_temperature(self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE))
        self._keep("top_p", checks.check_top_p(self.top_p))
        for name, low, high, off in _NUMBERS:
            self._keep(name, checks.check_number(name, getattr(self, name), low=low, high=high, hint=f" ({off} = off)"))
        self._keep("n", checks.check_int("n", self.n, low=1, high=MAX_N))
        for name in ("logprobs", "prompt_logprobs"):
            self._keep(name, checks.check_optional_int(name, getattr(self, name), low=0, high=MAX_LOGPROBS))
        for name in ("ignore_eos", "include_stop_str_in_output"):
            checks.check_bool(name, getattr(self, name))
        self._check_together()

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_together(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise SamplingError(
                f"min_tokens = {self.min_tokens}: above max_tokens = {self.max_tokens}; lower it or raise max_tokens"
            )
        if self.n > 1 and self.temperature == 0:
            raise SamplingError(
                f"n = {self.n}: greedy sequences of one prompt are all the same; set temperature above 0, or n to 1"
            )

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def with_fields(self, values: Mapping[str, Any]) -> SamplingParams:
        """These parameters with some replaced, as a line of a request file names them.

        Raises:
            SamplingError: an unknown name, or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise SamplingError(f"parameters = {shown(values)}: must map their names to values")
        names = [field.name for field in fields(self)]
        for name in values:
            if name not in names:
                near = [f"; did you mean {known}?" for known in get_close_matches(shown(name, str), names, 1)]
                hint = "".join(near) or f"; known are {', '.join(names)}"
                raise SamplingError(f"{shown(name, str)} = {shown(values[name])}: unknown parameter{hint}")
        return replace(self, **values)
