"""What request parameters do to the logits of one sequence, from their documentation and on whole lists of tokens: the oracle of
engine tests. It shares no code with the kernels, nor with their oracles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from runtime.sampling import SamplingParams

Logits = npt.NDArray[np.float64]


def processed(
    logits: npt.NDArray[np.floating], prompt: Sequence[int], output: Sequence[int], params: SamplingParams, stops: Collection[int]
) -> Logits:
    """Logits [V] of the token behind prompt + output, as far as a greedy request goes; forbidden ids are -inf.

    stops: ids that end the request.
    """
    result = logits.astype(np.float64).copy()
    for token, bias in params.logit_bias:
        result[token] += bias
    for token in {*prompt, *output}:
        result[token] *= 1 / params.repetition_penalty if result[token] > 0 else params.repetition_penalty
    for token, times in Counter(output).items():
        result[token] -= params.frequency_penalty * times + params.presence_penalty
    forbidden = set(stops) if len(output) < params.min_tokens else set()
    text = [*prompt, *output]
    for word in params.bad_words:
        assert not isinstance(word, str)
        if len(word) == 1 or tuple(text[1 - len(word) :]) == tuple(word[:-1]):
            forbidden.add(word[-1])
    if params.allowed_token_ids is not None:
        forbidden |= set(range(len(result))) - set(params.allowed_token_ids)
    result[list(forbidden)] = -np.inf
    return result


def drawable(logits: Logits, params: SamplingParams, slack: float = 0.0) -> set[int]:
    """Ids that a sampled request may draw from processed logits; `slack` widens every threshold, for logits that are rounded."""
    scaled = logits / params.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < params.min_p * (1 - slack)] = 0
    if 0 < params.top_k < np.count_nonzero(weights):
        weights[weights < np.sort(weights)[-params.top_k] * (1 - slack)] = 0
    order = np.argsort(-weights, kind="stable")
    above = np.cumsum(weights[order]) - weights[order]
    if params.top_p < 1:
        weights[order[above >= (params.top_p + slack) * weights.sum()]] = 0
    return set(np.flatnonzero(weights))
