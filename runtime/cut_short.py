"""Answers that were to have a length and end before it: figures of them would not be of the work that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import ConfigError
from runtime.intake import Intake
from runtime.prompts import Prompt
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams


def refuse_too_long(max_model_len: int | None, length: int | None, output_len: int | None = None) -> None:
    """Would prompts of `length` tokens not fit, or answers end before they have the `output_len` tokens that were asked for?

    Args:
        max_model_len: None: nobody knows it yet.
        length: None: the prompts are texts.

    Raises:
        ConfigError: says which, and what would fit.
    """
    if max_model_len is None or length is None:
        return
    if length >= max_model_len:
        raise ConfigError(
            f"--input-len {length}: with a new token above scheduler.max_model_len = {max_model_len}; lower it, or raise the limit"
        )
    if output_len is not None and length + output_len > max_model_len:
        room = max_model_len - length
        remedy = f"lower --output-len to {room}" if room > 1 else "lower --input-len"
        raise ConfigError(
            f"--input-len {length} and {output_len} new tokens (--output-len, --max-tokens): together above "
            f"scheduler.max_model_len = {max_model_len}, where answers end; {remedy}, or raise the limit"
        )


def refuse_untimed(intake: Intake, prompts: Sequence[Prompt], params: SamplingParams, input_len: int | None = None) -> None:
    """Before weights are read: can these requests be timed?

    Args:
        input_len: instead of prompts, random ones of so many tokens.

    Raises:
        DraftgraphError: a prompt that cannot be used, or one that leaves no room for an answer that only max_tokens ends.
    """
    limit = intake.max_model_len
    if input_len is not None:
        params = intake.resolve(params)
        refuse_too_long(limit, input_len, params.max_tokens if _only_length_ends(params) else None)
        return
    for number, (token_ids, asked) in enumerate(intake.requests(prompts, params), start=1):
        if _only_length_ends(asked) and len(token_ids) + asked.max_tokens > limit:
            raise _cut_short(number, len(token_ids), asked.max_tokens, limit)


def room_beside(intake: Intake, prompts: Sequence[Prompt], input_len: int | None = None) -> int:
    """Tokens that the model's length leaves for an answer to the longest of these prompts, or to random ones of `input_len`; 0 or
    less: it leaves none.

    Raises:
        DraftgraphError: a prompt that cannot be used.
    """
    lengths = [len(intake.encode(prompt, f"prompt {number}")) for number, prompt in enumerate(prompts, start=1)]
    return intake.max_model_len - (max(lengths) if input_len is None else input_len)


def refuse_cut_short(outputs: Sequence[RequestOutput], params: SamplingParams, max_model_len: int) -> None:
    """Did the model's length end an answer that nothing else could have ended before max_tokens?

    Raises ConfigError. Behind `refuse_untimed` this is left for answers that a stop string could have ended, and for a KV pool
    whose size nobody knew before.
    """
    if not params.ignore_eos:
        return
    for number, output in enumerate(outputs, start=1):
        produced = len(output.token_ids)
        if output.finish_reason == "length" and produced < params.max_tokens:
            raise _cut_short(number, len(output.prompt_token_ids), params.max_tokens, max_model_len)


def refuse_stuck(outputs: Sequence[RequestOutput]) -> None:
    """Did an answer end because it had no token to choose? Raises ConfigError."""
    stuck = [output for output in outputs if output.finish_reason == "error"]
    if stuck:
        raise ConfigError(
            f"{len(stuck)} of {len(outputs)} timed requests ended where every logit is NaN or masked, the first behind "
            f"{len(stuck[0].token_ids)} tokens; allowed_token_ids, bad_words and min_tokens must leave a token to choose"
        )


def _only_length_ends(params: SamplingParams) -> bool:
    return params.ignore_eos and not params.stop and not params.stop_token_ids


def _cut_short(number: int, prompt_len: int, max_tokens: int, limit: int) -> ConfigError:
    return ConfigError(
        f"prompt {number}: its {prompt_len} tokens and {max_tokens} new ones are above scheduler.max_model_len = {limit}, where "
        f"the answer ends after {limit - prompt_len}; lower --output-len (--max-tokens), shorten the prompt, or raise the limit"
    )
