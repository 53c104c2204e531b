"""Answers that were to have a length and ended before it: figures of them would not be of the work that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import ConfigError
from runtime.report import RequestOutput
from runtime.sampling import SamplingParams


def refuse_cut_short(outputs: Sequence[RequestOutput], params: SamplingParams, max_model_len: int) -> None:
    """Did the model's length end an answer that nothing else could have ended before max_tokens?

    Raises ConfigError. Texts have a length only once the model is open, so it is asked of the first answers.
    """
    if not params.ignore_eos or params.max_tokens is None:
        return
    for index, output in enumerate(outputs):
        produced, prompt = len(output.token_ids), len(output.prompt_token_ids)
        if output.finish_reason == "length" and produced < params.max_tokens:
            raise ConfigError(
                f"prompt {index + 1}: its {prompt} tokens and {params.max_tokens} new ones are above "
                f"scheduler.max_model_len = {max_model_len}, where the answer ended after {produced}; lower --output-len "
                "(--max-tokens), shorten the prompt, or raise the limit"
            )


def refuse_stuck(outputs: Sequence[RequestOutput]) -> None:
    """Did an answer end because it had no token to choose? Raises ConfigError."""
    stuck = [output for output in outputs if output.finish_reason == "error"]
    if stuck:
        raise ConfigError(
            f"{len(stuck)} of {len(outputs)} timed requests ended where every logit is NaN or masked, the first behind "
            f"{len(stuck[0].token_ids)} tokens; allowed_token_ids, bad_words and min_tokens must leave a token to choose"
        )
