"""Range checks of request parameters: each returns the value as SamplingParams keeps it, or says name, value and range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeGuard

from runtime.errors import SamplingError
from runtime.shown_value import shown

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_TOKEN_ID = 2**31 - 1

Word: TypeAlias = "str | tuple[int, ...]"
"""A bad word: a text, or the token ids of one spelling."""


def is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can hold; half of a surrogate pair is none."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_int(value: object) -> TypeGuard[int]:
    """An integer of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_int(name: str, value: object, *, low: int, high: int = 2**31 - 1) -> int:
    if not is_int(value) or not low <= value <= high:
        raise SamplingError(f"{name} = {shown(value)}: must be an integer in {low}..{high}")
    return int(value)


def check_optional_int(name: str, value: object, *, low: int, high: int) -> int | None:
    return None if value is None else check_int(name, value, low=low, high=high)


def is_number(value: object) -> bool:
    """A finite number of Python or NumPy."""
    # An integer is finite, and may be too large for math.isfinite.
    return is_int(value) or (isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value))


def number(value: Any) -> float:
    """A float of Python; an integer of Python stays what it was written as. NumPy's float64 is a float, but not written as one."""
    return value if type(value) is int else float(value)


def check_number(name: str, value: Any, *, low: float, high: float, hint: str = "") -> float:
    if not is_number(value) or not low <= value <= high:
        raise SamplingError(f"{name} = {shown(value)}: must be a number in {low}..{high}{hint}")
    return number(value)


def check_temperature(value: Any, low: float, high: float) -> float:
    # Below `low` the quotient of a logit overflows before it says more than greedy decoding does.
    if not is_number(value) or not (value == 0 or low <= value <= high):
        raise SamplingError(f"temperature = {shown(value)}: must be 0 or a number in {low}..{high}; use 0 for greedy decoding")
    return number(value)


def check_top_p(value: Any) -> float:
    if not is_number(value) or not 0 < value <= 1:
        hint = "; 0 would leave no token, top_k = 1 leaves one" if is_number(value) and value == 0 else ""
        raise SamplingError(f"top_p = {shown(value)}: must be a number above 0, at most 1 (1 = off){hint}")
    return number(value)


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SamplingError(f"{name} = {shown(value)}: must be true or false")
    return value


def stop_strings(values: object) -> tuple[str, ...]:
    """A text or a list of texts, none of them empty."""
    if isinstance(values, str):
        return stop_strings((values,))
    strings = _listed("stop", values, "strings", MAX_STOP_STRINGS)
    for index, value in enumerate(strings):
        if not isinstance(value, str) or not value:
            raise SamplingError(f"stop[{index}] = {shown(value)}: must be a string that is not empty")
        if not is_text(value):
            raise SamplingError(f"stop[{index}] = {shown(value)}: must be UTF-8 text")
    return strings


def token_ids(name: str, values: object, most: int = MAX_TOKEN_ID) -> tuple[int, ...]:
    """A list of at most `most` ids, in its order. Whether a vocabulary has them is asked later (runtime/resolve_sampling.py)."""
    ids = _listed(name, values, "token ids", most)
    return tuple(check_int(f"{name}[{index}]", value, low=0, high=MAX_TOKEN_ID) for index, value in enumerate(ids))


def allowed_ids(values: object) -> tuple[int, ...] | None:
    """Ids in ascending order, each once; None: everything is allowed."""
    if values is None:
        return None
    ids = token_ids("allowed_token_ids", values)
    if not ids:
        raise SamplingError("allowed_token_ids = []: no token could ever be chosen; name at least one id, or leave it out")
    return tuple(sorted(set(ids)))


def bad_words(values: object) -> tuple[Word, ...]:
    """Texts and lists of ids, in their order."""
    if isinstance(values, str):
        return bad_words((values,))
    words: list[Word] = []
    for index, value in enumerate(_listed("bad_words", values, "texts or lists of token ids", MAX_BAD_WORDS)):
        name = f"bad_words[{index}]"
        word: Word = value if isinstance(value, str) else token_ids(name, value, MAX_BAD_WORD_TOKENS)
        if not word or (isinstance(word, str) and not word.strip()):
            raise SamplingError(f"{name} = {shown(value)}: must be a text that is not blank, or at least one token id")
        if isinstance(word, str) and not is_text(word):
            raise SamplingError(f"{name} = {shown(value)}: must be UTF-8 text")
        words.append(word)
    return tuple(words)


def logit_bias(values: object) -> tuple[tuple[int, float], ...]:
    """(id, bias) by id. Keys may be written as texts, as JSON does."""
    pairs = list(values.items()) if isinstance(values, Mapping) else values
    if isinstance(pairs, str) or not _yields(pairs):
        raise SamplingError(f"logit_bias = {shown(values)}: must map token ids to numbers")
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise SamplingError(f"logit_bias = {shown(values)}: must map token ids to numbers")
        key, bias = pair
        # Longer digits are no id, and Python refuses to read thousands of them.
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10 else key
        token = check_int("logit_bias: token id", token, low=0, high=MAX_TOKEN_ID)
        check_number(f"logit_bias[{token}]", bias, low=-100, high=100)
        if token in biases:
            raise SamplingError(f"logit_bias: token id {token} stands twice; give one bias for it")
        biases[token] = float(bias)
    if len(biases) > MAX_LOGIT_BIAS:
        raise SamplingError(f"logit_bias has {len(biases)} ids: at most {MAX_LOGIT_BIAS} are allowed")
    return tuple(sorted(biases.items()))


def _yields(values: object) -> TypeGuard[Iterable[Any]]:
    """An array of no dimension has the methods of what yields elements, and yields none."""
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0


def _listed(name: str, values: object, kind: str, most: int) -> tuple[Any, ...]:
    if not _yields(values) or isinstance(values, str | bytes | Mapping):
        raise SamplingError(f"{name} = {shown(values)}: must be a list of {kind}")
    items = tuple(values)
    if len(items) > most:
        counted = kind.removeprefix("token ")
        raise SamplingError(f"{name} has {len(items)} {counted}: at most {most} are allowed")
    return items
