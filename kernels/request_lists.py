"""The lists of a request (bias, bad words, allowed ids) on their way into its slot."""

from __future__ import annotations

from kernels.lang import cuda, float_of_bits, i32, kernel


@kernel(writes=("bias_ids", "bias_values", "bad_starts", "bad_tokens", "allowed"))
def admit_lists(
    bias_ids,
    bias_values,
    bad_starts,
    bad_tokens,
    allowed,
    record,
    staged_bias_ids,
    staged_bias_bits,
    staged_bad_starts,
    staged_bad_tokens,
    staged_allowed,
):
    """Row of the slot = what is staged, over the whole length of each list.

    bias_ids    int32 [N, B], bias_values float32 [N, B] out;  staged as int32 [B], the values as their bits
    bad_starts  int32 [N, M + 1], bad_tokens int32 [N, Q] out
    allowed     int32 [N, W] out
    record      int32 [>= 1]: its first word is the slot

    A slot outside [0, N) writes nothing. Launch: any grid and block (grid 1, block 256). No barrier. Capture safe.
    Oracle: kernels.oracle_process.admit_lists.
    """
    first = i32(cuda.blockIdx.x) * i32(cuda.blockDim.x) + i32(cuda.threadIdx.x)
    step = i32(cuda.gridDim.x) * i32(cuda.blockDim.x)
    slot = i32(record[0])
    if slot >= i32(0) and slot < i32(bias_ids.shape[0]):
        for i in range(first, bias_ids.shape[1], step):
            bias_ids[slot, i] = staged_bias_ids[i]
            bias_values[slot, i] = float_of_bits(staged_bias_bits[i])
        for i in range(first, bad_starts.shape[1], step):
            bad_starts[slot, i] = staged_bad_starts[i]
        for i in range(first, bad_tokens.shape[1], step):
            bad_tokens[slot, i] = staged_bad_tokens[i]
        for i in range(first, allowed.shape[1], step):
            allowed[slot, i] = staged_allowed[i]
