"""SamplingParams: what one request asks of the decoder, validated once, before it reaches the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.errors import SamplingError

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 64
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request. Greedy decoding takes the token of the largest logit, the lowest id on a tie.

    max_tokens       tokens to produce at most, >= 1; a request also ends when it reaches max_model_len
    min_tokens       end-of-text, stop ids and stop strings are ignored until this many tokens exist, 0..max_tokens
    temperature      0: greedy; 0.01..100: tokens are drawn from the softmax of logits / temperature
    seed             of a sampled run; None: one of the engine's own. A greedy run gives the same tokens for every seed
    stop             strings that end the request; the text ends before the first of them
    stop_token_ids   token ids that end the request, besides the model's own end-of-text ids
    ignore_eos       do not end at the model's end-of-text ids (stop ids and strings still count)

    Raises SamplingError, naming the parameter, its value and the limit.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # A list is what callers write; the dataclass keeps tuples so that it stays hashable and frozen in depth.
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        _check_int("max_tokens", self.max_tokens, low=1)
        _check_int("min_tokens", self.min_tokens, low=0)
        if self.min_tokens > self.max_tokens:
            raise SamplingError(
                f"min_tokens = {self.min_tokens}: above max_tokens = {self.max_tokens}; lower it or raise max_tokens"
            )
        if self.seed is not None:
            _check_int("seed", self.seed, low=0, high=2**63 - 1)
        _check_temperature(self.temperature)
        if not isinstance(self.ignore_eos, bool):
            raise SamplingError(f"ignore_eos = {self.ignore_eos!r}: must be true or false")


def _check_int(name: str, value: object, *, low: int, high: int = 2**31 - 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SamplingError(f"{name} = {value!r}: must be an integer in {low}..{high}")


def _check_temperature(value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    # Below 0.01 the quotient of a logit overflows before it says more than greedy decoding does.
    if not number or not (value == 0 or MIN_TEMPERATURE <= value <= MAX_TEMPERATURE):  # type: ignore[operator]
        raise SamplingError(
            f"temperature = {value!r}: must be 0 or a number in {MIN_TEMPERATURE}..{MAX_TEMPERATURE}; use 0 for greedy decoding"
        )


def _strings(values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        return _strings((values,))
    if not isinstance(values, Iterable):
        raise SamplingError(f"stop = {values!r}: must be a list of strings")
    strings = tuple(values)
    if len(strings) > MAX_STOP_STRINGS:
        raise SamplingError(f"stop has {len(strings)} strings: at most {MAX_STOP_STRINGS} are allowed")
    for index, value in enumerate(strings):
        if not isinstance(value, str) or not value:
            raise SamplingError(f"stop[{index}] = {value!r}: must be a string that is not empty")
    return strings


def _token_ids(values: object) -> tuple[int, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise SamplingError(f"stop_token_ids = {values!r}: must be a list of token ids")
    ids = tuple(values)
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise SamplingError(f"stop_token_ids has {len(ids)} ids: at most {MAX_STOP_TOKEN_IDS} are allowed")
    for index, value in enumerate(ids):
        _check_int(f"stop_token_ids[{index}]", value, low=0)
    return ids
