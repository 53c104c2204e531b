"""The GPU's form of kernels/block_attend.py over 16-bit keys and values of 64 or 128 dims: a decode step's attention
(kernels/attend_step_gpu.py) whose rows see each other both ways, in a window where there is one, and whose keys are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_cluster_gpu import PAIRS, pairs_with
from kernels.attend_keys_gpu import visible_within
from kernels.attend_matrix_gpu import MATRIX
from kernels.attend_pages_gpu import inverse_of, quotient
from kernels.lang import cuda, device_function, i32, i64, u32
from kernels.lang_element import early_int
from kernels.lang_mma import mma_bfloat16, mma_float16, pair_bfloat16, pair_float16
from kernels.lang_overlap import cluster_number, cluster_numbers, wait_for_launches

_PAIRS = PAIRS


@device_function
def block_span(before, row, keys, window, causal):
    """Keys [begin, end) that a row of a block sees, as kernels/block_attend.py has it."""
    position, begin, end = min(i32(before + row), i32(keys - i32(1))), i32(0), keys
    if causal > i32(0):
        end = i32(position + i32(1))
    if window > i32(0):
        begin, end = max(i32(position - window + i32(1)), i32(0)), min(end, i32(position + window))
    return begin, end


def _block(mma: Any, pair: Any) -> Callable[..., Any]:
    attend_pairs = pairs_with(mma, pair, MATRIX, block_span, visible_within)

    def block_form(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, idx_mapping, context_lens, block_lens, num_heads, eps,
        window, causal, scale, num_requests, ring, queries, stats,
    ):  # fmt: skip
        kv_heads = i32(k_cache.shape[2])
        group = quotient(num_heads, inverse_of(kv_heads))
        share, page_share = inverse_of(group), inverse_of(i32(k_cache.shape[1]))
        rows = i32(u32(out.shape[0]) // u32(context_lens.shape[0]))
        pair_count = i32(rows * group)
        live = min(early_int(num_requests, i64(0)), i32(context_lens.shape[0]))
        request = i32(cuda.blockIdx.z)
        while request < live:
            slot = max(early_int(idx_mapping, i64(request)), i32(0))
            before = early_int(context_lens, i64(request))
            keys = max(i32(before + early_int(block_lens, i64(request))), i32(1))
            skipped = i32(0)
            if window > i32(0):
                skipped = i32(max(i32(min(before, i32(keys - i32(1))) - window + i32(1)), i32(0)) >> i32(4))
            kv_head = i32(cuda.blockIdx.y)
            while kv_head < kv_heads:
                first_pair = i32(cluster_number() * i32(_PAIRS))
                while first_pair < pair_count:
                    attend_pairs(
                        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, None,
                        i32(slot * i32(block_tables.shape[1])), kv_head, num_heads, i32(request * rows), group, share, page_share,
                        first_pair, min(i32(pair_count - first_pair), i32(_PAIRS)), before, before, keys, skipped, eps, scale,
                        False, window, causal, ring, queries, stats,
                    )  # fmt: skip
                    first_pair = i32(first_pair + cluster_numbers() * i32(_PAIRS))
                kv_head = i32(kv_head + i32(cuda.gridDim.y))
            request = i32(request + i32(cuda.gridDim.z))
        wait_for_launches()

    return block_form


def yes(k_cache):
    return True


BLOCK = {"uint16": _block(mma_bfloat16, pair_bfloat16), "float16": _block(mma_float16, pair_float16)}
"""By the type of the cache; anything else runs in the common form."""
