"""What the device is told of a request's sampling parameters, and whether its steps need more than argmax of the raw logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.sampling_slots import (
    RECORD_FREQUENCY,
    RECORD_MIN_P,
    RECORD_NUM_BAD,
    RECORD_NUM_BIAS,
    RECORD_NUM_LOGPROBS,
    RECORD_PRESENCE,
    RECORD_REPETITION,
    RECORD_RESTRICTED,
    RECORD_SEED,
    RECORD_TEMPERATURE,
    RECORD_TOP_K,
    RECORD_TOP_P,
    SAMPLING_RECORD,
)
from runtime.sampling import SamplingParams


def sampling_record(params: SamplingParams) -> npt.NDArray[np.int32]:
    """int32 [SAMPLING_RECORD]: the record that kernels.sampling_slots.admit_sampling takes apart."""
    record = np.zeros(SAMPLING_RECORD, np.int32)
    floats = record.view(np.float32)
    record[RECORD_SEED : RECORD_SEED + 2] = np.array([params.seed or 0], np.uint64).view(np.int32)
    floats[RECORD_TEMPERATURE] = params.temperature
    record[RECORD_TOP_K] = params.top_k
    floats[RECORD_TOP_P] = params.top_p
    floats[RECORD_MIN_P] = params.min_p
    floats[RECORD_REPETITION] = params.repetition_penalty
    floats[RECORD_PRESENCE] = params.presence_penalty
    floats[RECORD_FREQUENCY] = params.frequency_penalty
    record[RECORD_NUM_LOGPROBS] = -1 if params.logprobs is None else params.logprobs
    record[RECORD_NUM_BIAS] = len(params.logit_bias)
    record[RECORD_NUM_BAD] = len(params.bad_words)
    record[RECORD_RESTRICTED] = int(params.allowed_token_ids is not None)
    return record


def sampled_reason(params: SamplingParams) -> str | None:
    """Why steps with this request take the sampled graphs; None where argmax of the raw logits is all it asks for."""
    reasons = {
        "temperature": params.temperature > 0,
        "penalties": params.has_penalties,
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": params.bad_words,
        "min_tokens": params.min_tokens > 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def needs_more_than_greedy(params: SamplingParams) -> bool:
    """Whether requests with these parameters need graphs beyond those of plain greedy decoding."""
    return sampled_reason(params) is not None or params.logprobs is not None or params.prompt_logprobs is not None
