"""What each forward kernel means, in plain NumPy. Tests and documentation use it; nothing at run time does.

Every function returns what the kernel's output array holds afterwards; inputs are never changed. Sums are float64, so that an
oracle is closer to the truth than either of the kernel's compilations.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.int32]"


def _live(target: npt.NDArray[Any], rows: Integers, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`target` with its first rows[0] rows replaced by those of `values`: pads keep what they hold."""
    result = target.copy()
    result[: rows[0]] = values[: rows[0]].astype(target.dtype)
    return result


def _rms(x: npt.NDArray[Any], weight: Floats, eps: float) -> npt.NDArray[Any]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight


def embed(out: Floats, table: Floats, input_ids: Integers, num_tokens: Integers) -> Floats:
    inside = (input_ids >= 0) & (input_ids < len(table))
    rows = np.where(inside[:, None], table[np.where(inside, input_ids, 0)], 0)
    return _live(out, num_tokens, rows)


def rms_norm(out: Floats, x: Floats, weight: Floats, eps: float, num_tokens: Integers) -> Floats:
    return _live(out, num_tokens, _rms(x, weight, eps))


def add_rms_norm(
    out: Floats, residual: Floats, x: Floats, weight: Floats, eps: float, num_tokens: Integers
) -> tuple[Floats, Floats]:
    """(out, residual) afterwards."""
    total = residual + x
    return _live(out, num_tokens, _rms(total, weight, eps)), _live(residual, num_tokens, total)


def add_bias(x: Floats, bias: Floats, num_tokens: Integers) -> Floats:
    return _live(x, num_tokens, x + bias)


def _heads(qkv: Floats, head_dim: int) -> Floats:
    return qkv.reshape(len(qkv), -1, head_dim)


def head_norm(
    qkv: Floats, q_weight: Floats, k_weight: Floats, num_heads: int, num_kv_heads: int, eps: float, num_tokens: Integers
) -> Floats:
    heads = _heads(qkv, len(q_weight)).astype(np.float64)
    k_end = num_heads + num_kv_heads
    heads[:, :num_heads] = _rms(heads[:, :num_heads], q_weight, eps)
    heads[:, num_heads:k_end] = _rms(heads[:, num_heads:k_end], k_weight, eps)
    return _live(qkv, num_tokens, heads.reshape(qkv.shape))


def rope(qkv: Floats, table: Floats, positions: Integers, num_heads: int, num_kv_heads: int, num_tokens: Integers) -> Floats:
    head_dim = table.shape[1]
    half = head_dim // 2
    cosine, sine = table[positions, None, :half], table[positions, None, half:]
    heads = _heads(qkv, head_dim).astype(np.float64)
    turning = heads[:, : num_heads + num_kv_heads].copy()
    first, second = turning[..., :half], turning[..., half:]
    heads[:, : num_heads + num_kv_heads, :half] = first * cosine - second * sine
    heads[:, : num_heads + num_kv_heads, half:] = second * cosine + first * sine
    return _live(qkv, num_tokens, heads.reshape(qkv.shape))


def store_kv(
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    slot_mapping: Integers,
    num_heads: int,
    num_tokens: Integers,
    limit: float = np.inf,
) -> tuple[Floats, Floats]:
    """(k_cache, v_cache) afterwards. A value of `limit` or more, the first that the cache's type takes for infinity, or one that is
    NaN, is stored as 0, and its dim of the key as NaN."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    heads = _heads(qkv, head_dim)
    keys, values = k_cache.copy(), v_cache.copy()
    for token in range(num_tokens[0]):
        entry = slot_mapping[token]
        if entry >= 0:
            cell = entry // block_size, entry % block_size
            value = heads[token, num_heads + num_kv_heads :]
            held = abs(value) < limit
            keys[cell] = np.where(held, heads[token, num_heads : num_heads + num_kv_heads], np.nan)
            values[cell] = np.where(held, value, 0)
    return keys, values


def paged_attention(
    out: Floats,
    qkv: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Integers,
    token_slot: Integers,
    positions: Integers,
    num_heads: int,
    scale: float,
    num_tokens: Integers,
) -> Floats:
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    result = _heads(out, head_dim).astype(np.float64)
    for token in range(num_tokens[0]):
        seen = np.arange(positions[token] + 1)
        blocks = np.maximum(block_tables[token_slot[token], seen // block_size], 0)
        keys = k_cache[blocks, seen % block_size].astype(np.float64)
        values = v_cache[blocks, seen % block_size].astype(np.float64)
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            scores = keys[:, kv_head] @ _heads(qkv, head_dim)[token, head].astype(np.float64) * scale
            shares = np.exp(scores - scores.max())
            result[token, head] = shares @ values[:, kv_head] / shares.sum()
    return _live(out, num_tokens, result.reshape(out.shape))


def swiglu(out: Floats, gate_up: Floats, num_tokens: Integers) -> Floats:
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    return _live(out, num_tokens, gate / (1 + np.exp(-gate)) * up)


def gather_rows(out: Floats, x: Floats, indices: Integers, num_rows: Integers) -> Floats:
    return _live(out, num_rows, x[indices])


def stripe_argmax(
    best_value: Floats, best_column: Integers, logits: Floats, vocab_size: int, num_rows: Integers
) -> tuple[Floats, Integers]:
    best_value, best_column = best_value.copy(), best_column.copy()
    width = -(-vocab_size // len(best_value) // 8) * 8
    for stripe in range(len(best_value)):
        for row in range(int(num_rows[0])):
            real = logits[row, stripe * width : min((stripe + 1) * width, vocab_size)]
            ranked = np.where(np.isnan(real), -np.inf, real)
            found = ranked.size > 0 and ranked.max() > -np.inf
            best_value[stripe, row] = ranked.max() if found else -np.inf
            best_column[stripe, row] = stripe * width + ranked.argmax() if found else np.iinfo(np.int32).max
    return best_value, best_column


def argmax(out: Integers, logits: Floats, vocab_size: int, num_rows: Integers) -> Integers:
    real = logits[:, :vocab_size]
    ranked = np.where(np.isnan(real), -np.inf, real)
    return _live(out, num_rows, np.where(ranked.max(axis=1) > -np.inf, ranked.argmax(axis=1), -1))


def mix32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """kernels/mix.mix32 of each element."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def fill_random(out: npt.NDArray[Any], bound: float, seed: int) -> npt.NDArray[Any]:
    """float32 values, before they are rounded to the type of `out`."""
    first = mix32(np.array([seed], np.uint32))
    bits = mix32(np.arange(len(out), dtype=np.uint32) ^ first)
    return np.float32(bound) * ((bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1))
