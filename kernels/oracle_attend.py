"""What the attention of a step means, in plain NumPy: rotation, store and attention, as kernels/oracle_fused.py has them."""

from __future__ import annotations

import numpy as np

from kernels.oracle_forward import Floats, Integers, head_norm
from kernels.oracle_fused import attend, rotate_store


def attend_step(
    out: Floats,
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    table: Floats,
    block_tables: Integers,
    positions: Integers,
    slot_mapping: Integers,
    idx_mapping: Integers,
    query_start_loc: Integers,
    num_heads: int,
    scale: float,
    stored: int,
    num_requests: Integers,
    limit: float = np.inf,
) -> tuple[Floats, Floats, Floats]:
    """(out, k_cache, v_cache) afterwards; `limit` as in oracle_forward.store_kv."""
    num_tokens = query_start_loc[num_requests]
    query = np.zeros((len(qkv), num_heads * k_cache.shape[3]))
    tokens = (qkv, table, positions, slot_mapping, num_heads, num_tokens)
    query, keys, values = rotate_store(query, k_cache, v_cache, *tokens, limit)
    where = (block_tables, positions, idx_mapping, query_start_loc, num_heads, scale, num_requests)
    return attend(out, query, keys, values, *where), keys, values


def norm_attend_step(
    out: Floats,
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    q_gain: Floats,
    k_gain: Floats,
    table: Floats,
    block_tables: Integers,
    positions: Integers,
    slot_mapping: Integers,
    idx_mapping: Integers,
    query_start_loc: Integers,
    num_heads: int,
    eps: float,
    scale: float,
    stored: int,
    num_requests: Integers,
    limit: float = np.inf,
) -> tuple[Floats, Floats, Floats]:
    """(out, k_cache, v_cache) afterwards; `limit` as in oracle_forward.store_kv."""
    normed = head_norm(qkv, q_gain, k_gain, num_heads, k_cache.shape[2], eps, query_start_loc[num_requests])
    where = (block_tables, positions, slot_mapping, idx_mapping, query_start_loc, num_heads, scale, stored, num_requests)
    return attend_step(out, k_cache, v_cache, normed, table, *where, limit)
