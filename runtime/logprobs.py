"""TokenLogprobs: what the model itself thought of a token and of its rivals, and how it comes off the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.sampling import MAX_LOGPROBS


@dataclass(frozen=True)
class TokenLogprobs:
    """One emitted token under the softmax of the target's raw logits: before bias, penalties, masks and temperature.

    logprob   natural logarithm of its probability; -inf where the logits hold no number
    rank      tokens that are at least as likely, itself included: 1 for the only best
    top       (id, log probability) of the most likely tokens, largest first; as many as were asked for
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        top = [{"token_id": token, "logprob": _finite(value)} for token, value in self.top]
        return {"token_id": self.token_id, "logprob": _finite(self.logprob), "rank": self.rank, "top": top}


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for -inf."""
    return value if np.isfinite(value) else None


def read_logprobs(fields: npt.NDArray[np.int32], token_ids: list[int], wanted: int) -> list[TokenLogprobs]:
    """Logprobs of the tokens of one row.

    Args:
        fields: int32 [W, LOGPROB_FIELDS] (kernels/logprobs.py).
        token_ids: what the row emitted, at most W.
        wanted: most likely tokens that the request asked for, 0..MAX_LOGPROBS.
    """
    floats = fields.view(np.float32)
    told = []
    for place, token in enumerate(token_ids):
        ids = fields[place, 2 : 2 + wanted].tolist()
        values = floats[place, 2 + MAX_LOGPROBS : 2 + MAX_LOGPROBS + wanted].tolist()
        top = tuple(zip(ids, values, strict=True))
        told.append(TokenLogprobs(token, float(floats[place, 0]), int(fields[place, 1]), top))
    return told
