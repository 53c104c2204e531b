"""What one value of a configuration may be, where a type of pydantic's own does not say it: counts, buckets, drafts, prompts.

Each raises PydanticCustomError with what is allowed, to stand behind the key and the value (runtime/config_errors.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeGuard

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from runtime.errors import PromptError, SamplingError
from runtime.prompts import check_prompt
from runtime.sampling_checks import logit_bias

MAX_BLOCK_SIZE = 256
MAX_DRAFTS = 64


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _auto_or_count(value: object) -> int | Literal["auto"]:
    """`auto` or an integer >= 1. One validator instead of a union, so that a wrong value gets one message."""
    if value == "auto":
        return "auto"
    if _is_count(value):
        return value
    raise PydanticCustomError("auto_or_count", "must be auto or an integer >= 1")


def _buckets(value: object) -> tuple[int, ...] | Literal["auto"]:
    if value == "auto":
        return "auto"
    sizes = [size for size in value if _is_count(size)] if isinstance(value, list | tuple) else []
    if not sizes or len(sizes) != len(value):  # type: ignore[arg-type]
        raise PydanticCustomError("buckets", "must be auto or a list of integers >= 1")
    return tuple(sorted(set(sizes)))


def _block_size(value: object) -> int:
    if _is_count(value) and value <= MAX_BLOCK_SIZE and not value & (value - 1):
        return value
    raise PydanticCustomError("block_size", f"must be a power of two in 1..{MAX_BLOCK_SIZE}")


def _is_draft_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DRAFTS


def _draft_counts(value: object) -> int | Literal["auto"] | dict[int, int]:
    if value == "auto":
        return "auto"
    if _is_draft_count(value):
        return value
    if isinstance(value, Mapping) and value:
        # JSON has texts for keys.
        ranges = {int(least) if isinstance(least, str) and least.isdecimal() else least: k for least, k in value.items()}
        if all(_is_count(least) for least in ranges) and 1 in ranges and all(_is_draft_count(k) for k in ranges.values()):
            return dict(sorted(ranges.items()))
    text = f"must be auto, an integer of 0..{MAX_DRAFTS}, or drafts by the number of requests from 1 on, e.g. {{1: 7, 5: 3, 17: 0}}"
    raise PydanticCustomError("draft_counts", "{text}", {"text": text})


def _acceptance(value: object) -> str:
    """`real`, or `synthetic:RATE` with a rate of 0..1."""
    if value == "real":
        return "real"
    kind, _, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if kind == "synthetic" and 0.0 <= rate <= 1.0:
        return f"synthetic:{rate:g}"
    raise PydanticCustomError("acceptance", "must be real or synthetic:RATE with a rate of 0..1, e.g. synthetic:0.7")


def _prompt(value: object) -> object:
    try:
        check_prompt(value, "prompt")
    except PromptError as error:
        raise PydanticCustomError("prompt", "{text}", {"text": str(error)}) from error
    return value


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    try:
        return logit_bias(value)
    except SamplingError as error:
        raise PydanticCustomError("logit_bias", "{text}", {"text": behind_key("logit_bias", str(error))}) from error


def behind_key(name: str, text: str) -> str:
    """A message of SamplingParams, to stand behind the key and its value: what names the same value is left out."""
    return text.partition(": ")[2] if text.startswith(f"{name} = ") else text


def _mapping(pairs: tuple[tuple[int, float], ...]) -> dict[int, float]:
    return dict(pairs)


AutoCount: TypeAlias = Annotated[int | Literal["auto"], PlainValidator(_auto_or_count)]
Buckets: TypeAlias = Annotated[tuple[int, ...] | Literal["auto"], PlainValidator(_buckets)]
# YAML has lists only; the frozen model keeps tuples.
Items: TypeAlias = Annotated[tuple[Any, ...], Field(strict=False)]  # SamplingParams says what each may be
OptionalItems: TypeAlias = Annotated[tuple[Any, ...] | None, Field(strict=False)]
LogitBias: TypeAlias = Annotated[tuple[tuple[int, float], ...], PlainValidator(_logit_bias), PlainSerializer(_mapping)]
Prompts: TypeAlias = Annotated[tuple[Annotated[Any, BeforeValidator(_prompt)], ...], Field(strict=False)]
BlockSize: TypeAlias = Annotated[int, PlainValidator(_block_size)]
DraftCounts: TypeAlias = Annotated[int | Literal["auto"] | dict[int, int], PlainValidator(_draft_counts)]
Acceptance: TypeAlias = Annotated[str, PlainValidator(_acceptance)]
