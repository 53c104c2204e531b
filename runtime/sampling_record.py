"""What the device is told of a request's sampling parameters, and whether its steps need more than argmax of the raw logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.sampling_slots import (
    RECORD_MIN_P,
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
    record[RECORD_TOP_K] = 0
    floats[RECORD_TOP_P] = 1.0
    floats[RECORD_MIN_P] = 0.0
    return record


def sampled_reason(params: SamplingParams) -> str | None:
    """Why steps with this request take the sampled graphs; None where argmax of the raw logits is all it asks for."""
    return "temperature" if params.temperature > 0 else None
