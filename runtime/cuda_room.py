"""What is said where a GPU has no memory left: how much is free, and what takes less."""

from __future__ import annotations

import re

from cupy.cuda import runtime

REMEDY = (
    "lower scheduler.num_blocks, max_model_len, max_num_seqs or max_num_batched_tokens, name fewer sizes in graphs.buckets and "
    "graphs.token_buckets, use a smaller model, or end other programs there"
)

# As CUDA's runtime, its driver and its libraries call it, which raise errors of their own each.
_NAMES = re.compile(r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException | None) -> bool:
    """Does `error`, or what it came from, say that the GPU has no memory left?"""
    while error is not None:
        if isinstance(error, MemoryError) or _NAMES.search(str(error)):
            return True
        error = error.__cause__
    return False


def no_room(gpu: str) -> str:
    """The rest of a message: what is free on the GPU of that name, and the remedy."""
    try:
        free, total = runtime.memGetInfo()
    except runtime.CUDARuntimeError:  # so little that not even the question can be asked
        return f"other programs hold all of {gpu}; {REMEDY}"
    return f"{free:,} of {total:,} bytes are free on {gpu}; {REMEDY}"
