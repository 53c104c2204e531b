"""The argument types that each kernel is launched with, one word a parameter: f float32, i int32, l int64, a digit for array axes.

s is the storage type of the model, one for all words of a signature: float32, float16 or bfloat16 (bits in uint16).
tests/test_kernels_ptx.py compiles every kernel of kernels/ for a GPU with them; a kernel without an entry fails there.
"""

from __future__ import annotations

import re
from typing import Any

SIGNATURES: dict[str, str] = {
    # forward
    "embed": "f2 s2 i1 i1",
    "rms_norm": "s2 f2 f1 f i1",
    "add_rms_norm": "s2 f2 f2 f1 f i1",
    "add_bias": "s2 f1 i1",
    "head_norm": "s2 f1 f1 i i f i1",
    "rope": "s2 f2 i1 i i i1",
    "store_kv": "s4 s4 s2 i1 i i1",
    "paged_attention": "s2 s2 s4 s4 i2 i1 i1 i f i1",
    "swiglu": "s2 f2 i1",
    "gather_rows": "s2 s2 i1 i1",
    "argmax": "i1 s2 i i1",
    "stripe_argmax": "f2 i2 s2 i i1",
    "fill_random": "s1 f i",
    # fused decode
    "embed_squares": "f2 s2 f2 s2 f1 i1 i1",
    "embed_norm": "f2 s2 s2 f1 i1 f i1",
    "norm_project": "f2 s2 f2 s2 f i i i1",
    "norm_project_two": "f2 s2 f2 s2 f i i i1",
    "norm_gate_up": "s2 s2 f2 s2 f i i i1",
    "norm_project_small": "f2 s2 f2 s2 f i i i1",
    "norm_gate_up_small": "s2 s2 f2 s2 f i i i1",
    "flow_project": "f2 s2 f2 s2 f i i i1",
    "flow_gate_up": "s2 s2 f2 s2 f i i i1",
    "slab_gate_up": "s2 s2 f2 s2 f i i i1",
    "flow_residual": "f2 s2 f2 s2 s2 f1 i i1",
    "flow_residual_tap": "f2 s2 f2 s2 s2 s2 f1 i i i1",
    "flow_argmax": "f2 f2 i2 s2 s2 i i i1",
    "held_argmax": "f2 f2 i2 s2 s2 i i1",
    "project_residual": "f2 s2 f2 s2 s2 f1 i i1",
    "project_residual_two": "f2 s2 f2 s2 s2 f1 i i1",
    "project_residual_tap": "f2 s2 f2 s2 s2 s2 f1 i i i1",
    "project_residual_two_tap": "f2 s2 f2 s2 s2 s2 f1 i i i1",
    "wide_gate_up": "s2 s2 s2 i1",
    "wide_parts": "f2 s2 s2 i i1",
    "add_parts": "f2 s2 f2 f1 f i i1",
    "add_parts_tap": "f2 s2 s2 f2 f1 f i i i1",
    "norm_swiglu": "s2 f2 f2 i f i i1",
    "add_squares": "f2 s2 f2 f2 f1 i1",
    "add_norm": "f2 s2 f2 f1 f i1",
    "add_norm_tap": "f2 s2 s2 f2 f1 f i i1",
    "rotate_store": "s2 s4 s4 f2 f2 i1 i1 i i1",
    "norm_rotate_store": "s2 s4 s4 f2 f1 f1 f2 i1 i1 i f i1",
    "rotate_many": "s2 s4 s4 f2 f2 i1 i1 i i1",
    "norm_rotate_many": "s2 s4 s4 f2 f1 f1 f2 i1 i1 i f i1",
    "attend_step": "s2 s4 s4 f2 f2 i2 i1 i1 i1 i1 i f i i1",
    "norm_attend_step": "s2 s4 s4 f2 f1 f1 f2 i2 i1 i1 i1 i1 i f f i i1",
    "attend_few": "s2 s4 s4 f2 f2 i2 i1 i1 i1 i1 i f i i1",
    "norm_attend_few": "s2 s4 s4 f2 f1 f1 f2 i2 i1 i1 i1 i1 i f f i i1",
    "attend_rows": "s2 s2 s4 s4 i2 i1 i1 i1 i f i1",
    "attend_wide_rows": "s2 s2 s4 s4 i2 i1 i1 i1 i f i1",
    "gather_norm": "s2 f2 f1 i1 f i1",
    "project_argmax": "f2 f2 i2 s2 s2 i i1",
    "wide_head": "f2 f2 i2 s2 s2 i i1",
    "best_of_stripes": "i1 f2 i2 i1",
    # step
    "prepare": "i1 i1 i1 i1 i1 i1 i1 i2 i i i1",
    "prefill_inputs": "i1 i1 i2 i1 i1 i1 i1 i1",
    "combine": "i1 i1 i1 i1 i1 i1 i1 i2 i1 i i1",
    "accept_greedy": "i2 i1 i1 i1 i1 i1 i1 i1",
    "accept_synthetic": "i2 i1 i1 i1 i1 i1 i1 i1 i1 i i1",
    "sampled_rejected": "i1 i1 i1 i1 i1 i1 i1",
    "advance": "i1 i1 i1 i2 i1 i2 i1 i1 i1 i1 i1 i1 i2 i1",
    "clear_drafts": "i2 i1 i1 i1",
    "count_tokens": "i2 i2 i1 i1 i1",
    "begin_counts": "i2 i1 i1",
    "ngram_propose": "i2 i1 i2 i1 i1 i1 i1 i i i1",
    "admit": "i1 i1 i1 i2 i1 i1 i1 i1 i1 i2 i2 i1 i1",
    "staged_write": "i2 i2 i1",
    "expand_rows": "i1 i1 i1 i1 i1",
    "draft_inputs": "i1 i1 i1 i1 i1 i2 i i i1",
    "publish": "i3 i2 i1 i1 i1 i1 i1",
    "begin_step": "i2 i1 i1 i1 i1 i1 i1 i1 i2 i1 i1 i1 i1 i1 i2 i1 i1 i2 i i i1",
    "end_step": "i3 i1 i1 i1 i2 i1 i2 i1 i1 i1 i1 i1 i1 i1 i1 i1 i1 i2 i1",
    # sampling
    "admit_sampling": "f1 i2 i1 f1 f1 f1 f1 f1 i1 i1 i1 i1 i1 i1",
    "admit_lists": "i2 f2 i2 i2 i2 i1 i1 i1 i1 i1 i1",
    "race_stripes": "f2 i2 f2 f1 f1 i2 i1 i1 i1 i i1",
    "pick_rows": "i1 f2 i2 i1",
    "sum_stripes": "f2 f2 i2 f2 f1 i i1",
    "sum_rows": "f1 i1 f1 f2 f2 i2 i2 i1 i1 i1 i1 i1",
    "accept_drafts": "i1 f1 i1 i1 f2 f1 f1 i1 f1 i1 i1 i1 i3 f3 f1 i1 i i1",
    "residual_stripes": "f2 i2 f2 f1 f1 i1 f1 i1 i3 f3 f1 i2 i1 i1 i1 i1 i i1",
    "emit_drawn": "i2 i1 i1 f2 i2 i1 i1 i1 i1 i2 i1 i1 i1",
    # logits processing
    "adjust_logits": "f2 f2 f2 f1 f1 f1 f1 i2 i1 i2 f2 i1 i2 i1 i1 i1 i1 i1",
    "forbid_tokens": "f2 f2 i2 i1 i1 i2 i1 i2 i2 i1 i1 i1 i1 i1",
    "count_logits": "i3 f2 f2 f1 i1 f1 i1 i1",
    "find_buckets": "l2 f1 i1 i3 f2 f2 f1 i1 f1 f1 i1 i1",
    "list_members": "f2 i1 l2 f2 f2 i1 i1",
    "rank_members": "f1 f2 i1 l2 f2 i1 f1 i1 i1",
    "publish_logprobs": "i4 f2 i i2 f2 i2 i1 i1 i1 i1 i1",
    # block drafters
    "tap": "s2 f2 i i1",
    "keep_taps": "s2 i1 i1 i2 i1 s2 i1 i1 i1 i i1",
    "store_context": "s6 f2 f2 f2 i1 i1 i1 i1 i1 f i1",
    "block_embed": "i1 i1 i1 i1 i1 i1 f2 i1 i1 i1 s2 i i f i1",
    "block_inputs": "i1 i1 i1 i1 i1 i1 i1 i1 i1 i i i1",
    "block_attention": "s2 f2 s6 i2 i1 i1 i1 i i i i f i1",
    "block_attend": "s2 s4 s4 f2 f1 f1 f2 i2 i1 i1 i1 i f i i f i1",
    "block_conv": "s2 s2 f3 f2 i i i1",
    "join_conv": "f2 s2 f2 f2 f2 f3 f2 f1 f3 s2 f i i i1",
    "join_norm": "s2 f2 f2 f3 f2 f1 f i i1",
    "logit_scale": "f2 f f i1",
    "top_candidates": "i2 f2 f2 i i1",
    "edge_scores": "f3 i2 f2 f2 s2 s2 i1 i i1",
    "selector_walk": "i2 i1 i3 f3 i2 f3 i1 i1 i1 i1 i1 f1 i2 i1",
    "store_drafts": "i2 i1 i1 i1 i1 i1 i1 i1",
    # the target and drafter of arithmetic that gates run
    "toy_store": "i1 i1 i1 i1",
    "toy_argmax": "i1 i1 i2 i1 i1 i1 i1 i i i1",
    "toy_residual": "f2 f2 i1 i1 i i1",
    "overrule_drafts": "i2 i1 i2 i1 i1 i2 i i1",
    "scripted_propose": "i2 i1 i2 i1 i1 i1 i1 i2 i i1",
    "tape_rows": "i3 i1 i1 i1 i1 i1 i1 i1",
    "tape_drafts": "i3 i1 i2 i1 i1 i1",
}


STORAGES = ("float32", "float16", "bfloat16")


def storages_of(signature: str) -> tuple[str, ...]:
    """The storage types that a kernel of this signature must compile with: one stands for all where it has no word s."""
    return STORAGES if re.search(r"\bs", signature) else STORAGES[:1]


def numba_types(signature: str, storage: str = "float32") -> tuple[Any, ...]:
    """The Numba types of a signature: contiguous arrays, as every recorder passes them."""
    from numba import float32, int32, int64, types

    stored = {"float32": float32, "float16": types.float16, "bfloat16": types.uint16}[storage]
    scalars = {"f": float32, "i": int32, "l": int64, "s": stored}
    return tuple(types.Array(scalars[word[0]], int(word[1:]), "C") if word[1:] else scalars[word] for word in signature.split())
