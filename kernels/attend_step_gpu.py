"""The GPU's form of kernels/attend_step.py over 16-bit keys and values of 64 or 128 dims.

A step is as short as its instructions are few: offsets are of elements of contiguous arrays, in 32 bits where they fit, divisions
by small numbers are products with their inverse, loads of a kind are under way together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.attend_cluster_gpu import PAIRS, pairs_with
from kernels.attend_keys_gpu import all_before, visible
from kernels.attend_lanes_gpu import LANES
from kernels.attend_layout import Layout
from kernels.attend_matrix_gpu import MATRIX
from kernels.attend_pages_gpu import inverse_of, quotient
from kernels.lang import cuda, i32, i64
from kernels.lang_element import early_int
from kernels.lang_mma import mma_bfloat16, mma_float16, pair_bfloat16, pair_float16
from kernels.lang_overlap import cluster_number, cluster_numbers, wait_for_launches

_PAIRS = PAIRS


def _step(mma: Any, pair: Any, layout: Layout) -> Callable[..., Any]:
    attend_pairs = pairs_with(mma, pair, layout, all_before, visible)

    def step_form(
        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, positions, slot_mapping, idx_mapping, query_start_loc,
        num_heads, eps, scale, stored, num_requests, ring, queries, stats, few=None,
    ):  # fmt: skip
        kv_heads = i32(k_cache.shape[2])
        group = quotient(num_heads, inverse_of(kv_heads))
        share, page_share = inverse_of(group), inverse_of(i32(k_cache.shape[1]))
        request, last_request = i32(cuda.blockIdx.z), i32(idx_mapping.shape[0] - 1)
        live = early_int(num_requests, i64(0))
        at = min(request, last_request)
        token, behind = early_int(query_start_loc, i64(at)), early_int(query_start_loc, i64(i32(at + i32(1))))
        slot = early_int(idx_mapping, i64(at))
        while request < live:
            pair_count = i32((behind - token) * group)
            kv_head = i32(cuda.blockIdx.y)
            while kv_head < kv_heads:
                first_pair = i32(cluster_number() * i32(_PAIRS))
                while first_pair < pair_count:
                    pairs = min(i32(pair_count - first_pair), i32(_PAIRS))
                    before = early_int(positions, i64(token))
                    keys = i32(early_int(positions, i64(i32(token + quotient(i32(first_pair + pairs - i32(1)), share)))) + i32(1))
                    limit = before
                    if stored != i32(0):
                        limit = keys  # no early start behind who stored them: k_cache is read early
                    attend_pairs(
                        out, k_cache, v_cache, qkv, q_gain, k_gain, table, block_tables, slot_mapping,
                        i32(slot * i32(block_tables.shape[1])), kv_head, num_heads, token, group, share, page_share, first_pair,
                        pairs, before, limit, keys, i32(0), eps, scale, i32(first_pair + pairs) == pair_count, i32(0), i32(0), ring,
                        queries, stats,
                    )  # fmt: skip
                    first_pair = i32(first_pair + cluster_numbers() * i32(_PAIRS))
                kv_head = i32(kv_head + i32(cuda.gridDim.y))
            request = i32(request + i32(cuda.gridDim.z))
            at = min(request, last_request)
            token, behind = early_int(query_start_loc, i64(at)), early_int(query_start_loc, i64(i32(at + i32(1))))
            slot = early_int(idx_mapping, i64(at))
        wait_for_launches()

    return step_form


def yes(k_cache):
    return True


def _steps(layout: Layout) -> dict[str, Callable[..., Any]]:
    return {"uint16": _step(mma_bfloat16, pair_bfloat16, layout), "float16": _step(mma_float16, pair_float16, layout)}


STEP, FEW = _steps(MATRIX), _steps(LANES)
"""By the type of the cache; anything else runs in the common form. FEW: of kernels/attend_few.py."""
