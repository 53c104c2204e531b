"""What each kernel means that fills a block drafter's context, in plain NumPy. Tests and documentation use it; nothing at run time
does.

Every function returns what the kernel's output arrays hold afterwards; inputs are never changed. Sums are float64.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.int32]"


def tap(features: Floats, residual: Floats, column: int, num_tokens: Integers) -> Floats:
    result, live = features.copy(), num_tokens[0]
    result[:live, column : column + residual.shape[1]] = residual[:live]
    return result


def keep_taps(
    kept: Floats,
    kept_positions: Integers,
    kept_cells: Integers,
    draft_tokens: Integers,
    num_draft: Integers,
    features: Floats,
    positions: Integers,
    token_slot: Integers,
    slot_mapping: Integers,
    depth: int,
    num_tokens: Integers,
) -> dict[str, Floats | Integers]:
    """What the kernel writes, by name."""
    outputs = {"kept": kept, "kept_positions": kept_positions, "kept_cells": kept_cells}
    result = {name: value.copy() for name, value in (outputs | {"draft_tokens": draft_tokens, "num_draft": num_draft}).items()}
    for row in range(num_tokens[0]):
        slot, place = token_slot[row], token_slot[row] * depth + positions[row] % depth
        if 0 <= slot < len(num_draft):
            result["kept"][place], result["kept_positions"][place] = features[row], positions[row]
            result["kept_cells"][place] = slot_mapping[row]
            result["draft_tokens"][slot], result["num_draft"][slot] = -1, 0
    return result


def store_context(
    cache: Floats,
    context_kv: Floats,
    k_norms: Floats,
    rope_table: Floats,
    positions: Integers,
    token_slot: Integers,
    slot_mapping: Integers,
    num_computed: Integers,
    finished: Integers,
    eps: float,
    num_tokens: Integers,
    limit: float = np.inf,
) -> Floats:
    """`cache` afterwards; `limit` as in oracle_forward.store_kv."""
    result = cache.copy()
    layers, _, blocks, block_size, kv_heads, head_dim = cache.shape
    flat = result.reshape(layers, 2, blocks * block_size, kv_heads, head_dim)
    cos, sin = np.split(rope_table.astype(np.float64), 2, axis=1)
    for row in range(num_tokens[0]):
        cell, slot = slot_mapping[row], token_slot[row]
        known = 0 <= slot < len(num_computed) and cell >= 0
        if not known or finished[slot] or positions[row] >= num_computed[slot]:
            continue
        both = context_kv[row].astype(np.float64).reshape(layers, 2, kv_heads, head_dim)
        keys = both[:, 0] / np.sqrt((both[:, 0] ** 2).mean(-1, keepdims=True) + eps) * k_norms[:, None, :]
        first, second = np.split(keys, 2, axis=-1)
        c, s = cos[positions[row]], sin[positions[row]]
        bad = ~(abs(both[:, 1]) < limit)
        flat[:, 0, cell] = np.where(bad, np.nan, np.concatenate([first * c - second * s, second * c + first * s], axis=-1))
        flat[:, 1, cell] = np.where(bad, 0, both[:, 1])
    return result
