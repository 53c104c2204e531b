"""Synthetic acceptance, for timing: how many drafts a step accepts is decided by a hash, not by what the target says of them."""

from __future__ import annotations

from kernels.lang import cuda, device_function, i32, kernel, u32
from kernels.lang_overlap import let_next_launch_start, wait_for_launches
from kernels.mix import mix32

SYNTHETIC_ONE = 1 << 24
"""The threshold at which every draft is accepted."""


@device_function
def position_bits(slot, position):
    """24 random bits of one position in one slot: the same in every run, whatever the batch, the step or the number of drafts."""
    return i32(u32(mix32(u32(u32(position) ^ mix32(u32(u32(slot) + u32(1))))) >> u32(8)))


@kernel(writes=("sampled", "num_sampled", "num_drafts"), overlap=True)
def accept_synthetic(
    sampled, num_sampled, num_drafts, row_argmax, input_ids, logits_indices, cu_num_logits, idx_mapping, positions, threshold,
    num_requests,
):  # fmt: skip
    """As `accept_greedy`, but draft i is accepted when the bits of the position it would stand at are below `threshold`.

    sampled        int32 [R, W] out: accepted drafts as they were fed (the target's token where none was proposed), then one token
                                 of the target. The text means nothing.
    num_sampled    int32 [R] out: 1..k_r + 1; a row still in its prompt is zeroed by `sampled_rejected`, which comes next.
    num_drafts     int32 [R] out: k_r, placeholders included: they are verified at the same cost, and may be accepted here.
    row_argmax     int32 [J], may be NO_TOKEN;  input_ids int32 [T] after the combine;  logits_indices int32 [J];
    cu_num_logits  int32 [R+1];  idx_mapping int32 [R];  positions int32 [T];  num_requests int32 [1].
    threshold      int32 0..2^24: the acceptance rate, given that the drafts before were accepted, times 2^24.

    Launch, ownership, capture: as `accept_greedy`. Oracle: oracle_synthetic.accept_synthetic. Method: vLLM's
    rejection_sample_method = "synthetic", with the random number drawn from the position and not from a stream.
    """
    wait_for_launches()
    let_next_launch_start()
    rows = i32(num_requests[0])
    width = i32(sampled.shape[1])
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    for row in range(first, rows, i32(cuda.gridDim.x) * i32(cuda.blockDim.x)):
        slot = i32(idx_mapping[row])
        base = i32(cu_num_logits[row])
        num_logits = i32(cu_num_logits[row + i32(1)]) - base
        emitted = i32(0)
        walking = True
        for i in range(num_logits):
            if walking and i < width:
                token = i32(row_argmax[base + i])
                walking = False
                if i + i32(1) < num_logits:
                    position = i32(positions[logits_indices[base + i]]) + i32(1)
                    walking = position_bits(slot, position) < threshold
                    draft = i32(input_ids[logits_indices[base + i + i32(1)]])
                    if walking and draft >= i32(0):
                        token = draft
                sampled[row, i] = token
                emitted += i32(1)
        for i in range(emitted, width):
            sampled[row, i] = i32(-1)
        num_sampled[row] = emitted
        num_drafts[row] = max(i32(0), num_logits - i32(1))
