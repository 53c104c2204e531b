"""Plain NumPy meaning of kernels/accept_synthetic.py."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.oracle_forward import mix32

Integers = npt.NDArray[np.int32]


def position_bits(slot: int, positions: Integers) -> Integers:
    """24 bits of each position of one slot."""
    slot_bits = mix32(np.array([slot + 1], np.uint32))
    return (mix32(positions.astype(np.uint32) ^ slot_bits) >> np.uint32(8)).astype(np.int32)


def accept_synthetic(
    sampled: Integers,
    row_argmax: Integers,
    input_ids: Integers,
    logits_indices: Integers,
    cu_num_logits: Integers,
    idx_mapping: Integers,
    positions: Integers,
    threshold: int,
    num_requests: Integers,
) -> tuple[Integers, Integers, Integers]:
    """(sampled, num_sampled, num_drafts) of the live rows; pads of `sampled` keep what they hold, counts of pads are 0."""
    sampled = sampled.copy()
    counts = np.zeros((2, len(sampled)), np.int32)
    for row in range(num_requests[0]):
        places = logits_indices[cu_num_logits[row] : cu_num_logits[row + 1]]
        tokens = row_argmax[cu_num_logits[row] : cu_num_logits[row + 1]].tolist()
        emitted: list[int] = []
        for i, token in enumerate(tokens[: sampled.shape[1]]):
            last = i + 1 == len(places)
            accepted = not last and position_bits(int(idx_mapping[row]), positions[places[i : i + 1]] + 1)[0] < threshold
            draft = -1 if last else int(input_ids[places[i + 1]])
            emitted.append(draft if accepted and draft >= 0 else token)
            if not accepted:
                break
        sampled[row] = -1
        sampled[row, : len(emitted)] = emitted
        counts[:, row] = len(emitted), max(0, len(places) - 1)
    return sampled, counts[0], counts[1]
