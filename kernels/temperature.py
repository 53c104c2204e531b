"""Temperature: the last thing that happens to a logit before a token is drawn."""

from __future__ import annotations

from kernels.lang import cuda, f32, i32, kernel
from kernels.lang_storage import widen


@kernel(writes=("processed",))
def scale_logits(processed, logits, temperature, token_slot, logits_indices, num_rows):
    """processed[j, v] = logits[j, v] / temperature of the row's slot; unchanged where that is 0 (greedy).

    Args:
        processed: float32 [J, V].
        logits: [J, V' >= V], any storage type.
        temperature: float32 [N] by slot.
        token_slot: int32 [T].
        logits_indices: int32 [J]: the token row of each logits row.
        num_rows: int32 [1], live rows.

    Launch: grid (J, stripes), threads over the columns; any grid and block is right. No barrier. Capture safe. Oracle:
    oracle_sampling.scale_logits.
    """
    vocab_size = i32(processed.shape[1])
    for row in range(cuda.blockIdx.x, num_rows[0], cuda.gridDim.x):
        slot = i32(token_slot[logits_indices[row]])
        divisor = f32(1.0)
        if slot >= i32(0) and temperature[slot] > f32(0.0):
            divisor = temperature[slot]
        first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        for column in range(first, vocab_size, cuda.gridDim.y * cuda.blockDim.x):
            processed[row, column] = widen(logits[row, column]) / divisor
