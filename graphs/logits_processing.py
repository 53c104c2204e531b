"""From the target's raw logits to the logits that tokens are drawn from, row by row, on the device."""

from __future__ import annotations

from graphs.arrays import SlotState, StepArrays
from graphs.launch import Array, Launcher
from kernels.temperature import scale_logits

THREADS = 256
STRIPE_COLUMNS = 8192


def record_processing(
    launch: Launcher, state: SlotState, step: StepArrays, logits: Array, processed: Array, num_requests: int, num_logits: int
) -> None:
    """Record logits [J, V' >= V] -> processed float32 [J, V] for at most `num_logits` rows of at most `num_requests` requests.

    Rows of a temperature above 0 are divided by it; greedy rows are not. A masked token is -inf.
    """
    vocab_size = processed.shape[1]
    launch.launch(
        scale_logits,
        (num_logits, -(-vocab_size // STRIPE_COLUMNS)),
        THREADS,
        processed[:num_logits],
        logits[:num_logits],
        state.sampling.temperature,
        step.token_slot,
        step.logits_indices[:num_logits],
        step.inputs.num_logits,
    )
