"""Device memory of sampled steps (graphs/sampled_step.py)."""

from __future__ import annotations

import numpy as np

from graphs.sampled_step import stripes_of
from graphs.sampling_state import SamplingScratch
from runtime.device import Device


def allocate_sampling_scratch(device: Device, num_logits: int, vocab_size: int) -> SamplingScratch:
    """Arrays for steps of at most `num_logits` logits rows J; 4 J V bytes and little more."""
    stripes = stripes_of(vocab_size)
    return SamplingScratch(
        slot_of_row=device.array("logits_slot", (num_logits,), np.int32),
        local_position=device.array("logits_place", (num_logits,), np.int32),
        processed=device.array("processed_logits", (num_logits, vocab_size), np.float32),
        best_score=device.array("sample_best_score", (stripes, num_logits), np.float32),
        best_column=device.array("sample_best_column", (stripes, num_logits), np.int32),
        picks=device.array("sample_picks", (num_logits,), np.int32),
    )
