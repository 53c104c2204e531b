"""The argument types that each kernel is launched with, one word a parameter: f float32, i int32, a digit for the axes of an array.

tests/test_kernels_ptx.py compiles every kernel of kernels/ for a GPU with them; a kernel without an entry fails there.
"""

from __future__ import annotations

from typing import Any

SIGNATURES: dict[str, str] = {
    # forward
    "embed": "f2 f2 i1 i1",
    "rms_norm": "f2 f2 f1 f i1",
    "add_rms_norm": "f2 f2 f2 f1 f i1",
    "add_bias": "f2 f1 i1",
    "head_norm": "f2 f1 f1 i i f i1",
    "rope": "f2 f2 i1 i i i1",
    "store_kv": "f4 f4 f2 i1 i i1",
    "paged_attention": "f2 f2 f4 f4 i2 i1 i1 i f i1",
    "swiglu": "f2 f2 i1",
    "gather_rows": "f2 f2 i1 i1",
    "argmax": "i1 f2 i i1",
    # step
    "prepare": "i1 i1 i1 i1 i1 i1 i1 i2 i i i1",
    "prefill_inputs": "i1 i1 i2 i1 i1 i1 i1 i1",
    "combine": "i1 i1 i1 i1 i1 i1 i1 i2 i1 i i1",
    "accept_greedy": "i2 i1 i1 i1 i1 i1 i1 i1",
    "sampled_rejected": "i1 i1 i1 i1 i1 i1 i1",
    "advance": "i1 i1 i1 i2 i1 i2 i1 i1 i1 i1 i1 i1 i2 i1",
    "count_tokens": "i2 i2 i1 i1 i1",
    "ngram_propose": "i2 i1 i2 i1 i1 i1 i1 i i i1",
    "admit": "i1 i1 i1 i2 i1 i1 i1 i1 i1 i2 i2 i1 i1",
    "staged_write": "i2 i2 i1",
    "expand_rows": "i1 i1 i1 i1 i1",
    "draft_inputs": "i1 i1 i1 i1 i1 i2 i i i1",
    "publish": "i3 i2 i1 i1 i1 i1 i1",
    # block drafters
    "tap": "f2 f2 i i1",
    "context_cells": "i1 i1 i1 i1 i1 i1 i1",
    "store_context": "f6 f2 f2 f2 i1 i1 f i1",
    "block_inputs": "i1 i1 i1 i1 i1 i1 i1 i1 i1 i i i1",
    "block_attention": "f2 f2 f6 i2 i1 i1 i1 i i i i f i1",
    "block_conv": "f2 f2 f3 f2 i i i1",
    "logit_scale": "f2 f f i1",
    "scale_rows": "f2 f i1",
    "top_candidates": "i2 f2 f2 i i1",
    "edge_scores": "f3 i2 f2 f2 f2 f2 i1 i i1",
    "selector_walk": "i1 i2 f3 i i1",
    "store_drafts": "i2 i1 i1 i1 i1 i1 i1 i1",
    # the target and drafter of arithmetic that gates run
    "toy_store": "i1 i1 i1 i1",
    "toy_argmax": "i1 i1 i2 i1 i1 i1 i1 i i i1",
    "scripted_propose": "i2 i1 i2 i1 i1 i1 i1 i2 i i1",
    "tape_rows": "i3 i1 i1 i1 i1 i1 i1 i1",
    "tape_drafts": "i3 i1 i2 i1 i1 i1",
}


def numba_types(signature: str) -> tuple[Any, ...]:
    """The Numba types of a signature: contiguous arrays, as every recorder passes them."""
    from numba import float32, int32, types

    scalars = {"f": float32, "i": int32}
    return tuple(types.Array(scalars[word[0]], int(word[1:]), "C") if word[1:] else scalars[word] for word in signature.split())
