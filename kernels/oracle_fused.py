"""What each kernel of the fused decode path means, in plain NumPy: as oracle_forward.py, whose rules hold here too.

Arrays are float32: tests widen 16-bit ones before and compare with a tolerance of their type.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.oracle_forward import Floats, Integers, _heads, _live, embed, head_norm, rope, store_kv

TILE_ROWS = 8


def squares_of(rows: Floats) -> npt.NDArray[np.float64]:
    """Sums of squares of each 8 columns; the last sum may be of fewer."""
    columns = -(-rows.shape[1] // TILE_ROWS) * TILE_ROWS
    padded = np.zeros((len(rows), columns))
    padded[:, : rows.shape[1]] = rows
    return np.asarray((padded.reshape(len(rows), -1, TILE_ROWS) ** 2).sum(axis=2))


def _scales(squares: Floats, width: int, eps: float, scaled: int) -> npt.NDArray[np.float64]:
    """What a row of the product is multiplied with, [T, 1]."""
    if scaled:
        return np.ones((len(squares), 1))
    return np.asarray(1 / np.sqrt(squares.astype(np.float64).sum(axis=1, keepdims=True) / width + eps))


def embed_squares(
    residual: Floats, normed: Floats, squares: Floats, table: Floats, gain: Floats, input_ids: Integers, num_tokens: Integers
) -> tuple[Floats, Floats, Floats]:
    """(residual, normed, squares) afterwards."""
    rows = embed(residual, table, input_ids, num_tokens)
    return rows, _live(normed, num_tokens, rows * gain), _live(squares, num_tokens, squares_of(rows))


def embed_norm(
    residual: Floats, normed: Floats, table: Floats, gain: Floats, input_ids: Integers, eps: float, num_tokens: Integers
) -> tuple[Floats, Floats]:
    """(residual, normed) afterwards."""
    rows = embed(residual, table, input_ids, num_tokens)
    scale = 1 / np.sqrt((rows.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + eps)
    return rows, _live(normed, num_tokens, rows * scale * gain)


def norm_project(
    out: Floats, x: Floats, squares: Floats, weight: Floats, eps: float, scaled: int, parts: int, num_tokens: Integers
) -> Floats:
    return _live(out, num_tokens, x.astype(np.float64) @ weight.T * _scales(squares, x.shape[1], eps, scaled))


def norm_gate_up(
    out: Floats, x: Floats, squares: Floats, weight: Floats, eps: float, scaled: int, parts: int, num_tokens: Integers
) -> Floats:
    gate, up = np.split(x.astype(np.float64) @ weight.T * _scales(squares, x.shape[1], eps, scaled), 2, axis=1)
    return _live(out, num_tokens, gate / (1 + np.exp(-gate)) * up)


def wide_gate_up(out: Floats, x: Floats, weight: Floats, num_tokens: Integers) -> Floats:
    gate, up = np.split(x.astype(np.float64) @ weight.T, 2, axis=1)
    return _live(out, num_tokens, gate / (1 + np.exp(-gate)) * up)


def wide_parts(out: Floats, x: Floats, weight: Floats, parts: int, num_tokens: Integers) -> Floats:
    """Chunks of 64 columns take turns among the parts."""
    owner, result = np.arange(x.shape[1]) // 64 % parts, out.astype(np.float64)
    for part in range(parts):
        columns = slice(part * len(weight), (part + 1) * len(weight))
        result[:, columns] = x[:, owner == part].astype(np.float64) @ weight[:, owner == part].T
    return _live(out, num_tokens, result)


def add_parts(
    residual: Floats, normed: Floats, x: Floats, gain: Floats, eps: float, parts: int, num_tokens: Integers
) -> tuple[Floats, Floats]:
    """(residual, normed) afterwards."""
    width = residual.shape[1]
    total = sum(x[:, part * width : (part + 1) * width].astype(np.float64) for part in range(parts))
    return add_norm(residual, normed, np.asarray(total), gain, eps, num_tokens)


def add_parts_tap(
    residual: Floats,
    normed: Floats,
    features: Floats,
    x: Floats,
    gain: Floats,
    eps: float,
    column: int,
    parts: int,
    num_tokens: Integers,
) -> tuple[Floats, Floats, Floats]:
    """(residual, normed, features) afterwards."""
    written = add_parts(residual, normed, x, gain, eps, parts, num_tokens)
    result, live = features.copy(), num_tokens[0]
    result[:live, column : column + residual.shape[1]] = written[0][:live]
    return *written, result


def project_residual(
    residual: Floats,
    normed: Floats,
    squares: Floats,
    x: Floats,
    weight: Floats,
    gain: Floats,
    parts: int,
    num_tokens: Integers,
) -> tuple[Floats, Floats, Floats]:
    """(residual, normed, squares) afterwards."""
    total = _live(residual, num_tokens, residual + x.astype(np.float64) @ weight.T)
    return total, _live(normed, num_tokens, total * gain), _live(squares, num_tokens, squares_of(total))


def project_residual_tap(
    residual: Floats,
    normed: Floats,
    squares: Floats,
    features: Floats,
    x: Floats,
    weight: Floats,
    gain: Floats,
    column: int,
    parts: int,
    num_tokens: Integers,
) -> tuple[Floats, Floats, Floats, Floats]:
    """(residual, normed, squares, features) afterwards."""
    written = project_residual(residual, normed, squares, x, weight, gain, parts, num_tokens)
    result, live = features.copy(), num_tokens[0]
    result[:live, column : column + residual.shape[1]] = written[0][:live]
    return *written, result


def norm_swiglu(
    out: Floats, gate_up: Floats, squares: Floats, width: int, eps: float, scaled: int, num_tokens: Integers
) -> Floats:
    gate, up = np.split(gate_up.astype(np.float64) * _scales(squares, width, eps, scaled), 2, axis=1)
    return _live(out, num_tokens, gate / (1 + np.exp(-gate)) * up)


def add_squares(
    residual: Floats, normed: Floats, squares: Floats, x: Floats, gain: Floats, num_tokens: Integers
) -> tuple[Floats, Floats, Floats]:
    """(residual, normed, squares) afterwards."""
    total = _live(residual, num_tokens, residual + x.astype(np.float64))
    return total, _live(normed, num_tokens, total * gain), _live(squares, num_tokens, squares_of(total))


def add_norm(
    residual: Floats, normed: Floats, x: Floats, gain: Floats, eps: float, num_tokens: Integers
) -> tuple[Floats, Floats]:
    """(residual, normed) afterwards."""
    total = _live(residual, num_tokens, residual + x.astype(np.float64))
    scale = 1 / np.sqrt((total.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + eps)
    return total, _live(normed, num_tokens, total * scale * gain)


def add_norm_tap(
    residual: Floats,
    normed: Floats,
    features: Floats,
    x: Floats,
    gain: Floats,
    eps: float,
    column: int,
    num_tokens: Integers,
) -> tuple[Floats, Floats, Floats]:
    """(residual, normed, features) afterwards."""
    total, norm = add_norm(residual, normed, x, gain, eps, num_tokens)
    result, live = features.copy(), num_tokens[0]
    result[:live, column : column + residual.shape[1]] = total[:live]
    return total, norm, result


def rotate_store(
    query: Floats,
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    table: Floats,
    positions: Integers,
    slot_mapping: Integers,
    num_heads: int,
    num_tokens: Integers,
    limit: float = np.inf,
) -> tuple[Floats, Floats, Floats]:
    """(query, k_cache, v_cache) afterwards; `limit` as in oracle_forward.store_kv."""
    turned = rope(qkv, table, positions, num_heads, k_cache.shape[2], num_tokens)
    keys, values = store_kv(k_cache, v_cache, turned, slot_mapping, num_heads, num_tokens, limit)
    return _live(query, num_tokens, turned[:, : query.shape[1]]), keys, values


def norm_rotate_store(
    query: Floats,
    k_cache: Floats,
    v_cache: Floats,
    qkv: Floats,
    q_gain: Floats,
    k_gain: Floats,
    table: Floats,
    positions: Integers,
    slot_mapping: Integers,
    num_heads: int,
    eps: float,
    num_tokens: Integers,
    limit: float = np.inf,
) -> tuple[Floats, Floats, Floats]:
    """(query, k_cache, v_cache) afterwards."""
    normed = head_norm(qkv, q_gain, k_gain, num_heads, k_cache.shape[2], eps, num_tokens)
    return rotate_store(query, k_cache, v_cache, normed, table, positions, slot_mapping, num_heads, num_tokens, limit)


def attend(
    out: Floats,
    query: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Integers,
    positions: Integers,
    idx_mapping: Integers,
    query_start_loc: Integers,
    num_heads: int,
    scale: float,
    num_requests: Integers,
) -> Floats:
    """`out` afterwards; what totals and stats hold is nobody's business, and arrivals are 0 again."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    result = out.copy()
    for request in range(num_requests[0]):
        for token in range(query_start_loc[request], query_start_loc[request + 1]):
            seen = np.arange(positions[token] + 1)
            blocks = np.maximum(block_tables[idx_mapping[request], seen // block_size], 0)
            keys = k_cache[blocks, seen % block_size].astype(np.float64)
            values = v_cache[blocks, seen % block_size].astype(np.float64)
            for head in range(num_heads):
                kv_head = head // (num_heads // num_kv_heads)
                scores = keys[:, kv_head] @ _heads(query, head_dim)[token, head].astype(np.float64) * scale
                shares = np.exp(scores - scores.max())
                attended = shares @ values[:, kv_head] / shares.sum()
                result[token, head * head_dim : (head + 1) * head_dim] = attended
    return result


def gather_norm(
    out: Floats, residual: Floats, gain: Floats, indices: Integers, eps: float, num_rows: Integers
) -> Floats:
    rows = residual[indices].astype(np.float64)
    return _live(out, num_rows, rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps) * gain)


def project_argmax(logits: Floats, x: Floats, weight: Floats, num_rows: Integers) -> Floats:
    """`logits` afterwards; best_value and best_column are what `best_columns` makes of them."""
    with np.errstate(invalid="ignore"):  # rows of infinities
        return _live(logits, num_rows, x.astype(np.float64) @ weight.T)


def best_of_stripes(out: Integers, best_value: Floats, best_column: Integers, num_rows: Integers) -> Integers:
    best = np.zeros_like(out)
    for row in range(len(out)):
        top = best_value[:, row].max()
        best[row] = best_column[best_value[:, row] == top, row].min() if top > -np.inf else -1
    return _live(out, num_rows, best)
