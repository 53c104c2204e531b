"""`--input-len N`: prompts of one length, for timing; what they say means nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.cut_short import refuse_too_long
from runtime.prompts import Prompt


def random_prompts(engine: Any, count: int, length: int) -> list[Prompt]:
    """`count` prompts of `length` ids of the engine's vocabulary, the same for the same count.

    Raises:
        ConfigError: not one new token has room behind such a prompt.
    """
    refuse_too_long(engine.scheduler.max_model_len, length)
    vocabulary = int(engine.info()["model"]["vocab_size"])
    rng = np.random.default_rng(count)
    return [rng.integers(vocabulary, size=length).tolist() for _ in range(count)]
